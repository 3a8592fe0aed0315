//! Random requests, and answers as words.

use super::Random;
use anyhow::{Result, bail, ensure};
use oxide_infer::TokenId;
use oxide_infer::sampling::{LogProbs, SamplingParams, TokenLogProb};
use oxide_infer_engine::request::{EosPolicy, Masking, StopConditions};
use oxide_infer_engine::{EngineEvent, EngineRequest, EventStream, ExecutorLimits};
use std::num::NonZeroU32;
use std::sync::Arc;

/// Everything that a request brought: of its prompt and of every choice, tokens, ranks and the bits of log-probabilities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    prompt: Vec<u32>,
    choices: Vec<Vec<u32>>,
}

/// A request that fits the limits: prompts of several families that begin alike, greedy and seeded, with penalties and
/// biases, one choice or several, with and without log-probabilities.
pub(super) fn request(random: &mut Random, limits: &ExecutorLimits, longest: usize) -> EngineRequest {
    let max_tokens = 1 + random.below(60) as u32;
    let room = limits.max_model_len - max_tokens as usize;
    // Short ones are more frequent, and some are of whole pages.
    let len = match random.below(4) {
        0 => 1 + random.below(20) as usize,
        1 => limits.page_size * (1 + random.below(4) as usize),
        _ => 1 + random.below(longest as u64) as usize,
    }
    .min(room);
    let (family, shared) = (random.below(3), random.below(len as u64 + 1));
    let vocab = limits.vocab_size as u64 - 3;
    let token = |at: u64| match at < shared {
        true => 3 + (at * 7919 + family * 104_729) % vocab,
        false => 3 + random.below(vocab),
    };
    let prompt: Vec<_> = (0..len as u64).map(token).map(|id| TokenId(id as u32)).collect();
    let some = |random: &mut Random, of: u64| random.below(of) == 0;
    let seeded = SamplingParams { seed: random.next(), top_p: 0.95, ..SamplingParams::default() };
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let sampling = match random.below(6) {
        0 => seeded,
        1 => SamplingParams { repetition_penalty: 1.2, presence_penalty: 0.3, top_k: Some(40), ..seeded },
        2 => SamplingParams { logit_bias: Arc::from([(TokenId(9), 2.0), (TokenId(4), -1.0)]), ..greedy },
        3 => SamplingParams { frequency_penalty: 0.5, ..greedy },
        _ => greedy,
    };
    EngineRequest {
        prompt: prompt.into(),
        choices: if some(random, 8) { NonZeroU32::MIN.saturating_add(2) } else { NonZeroU32::MIN },
        sampling: Arc::new(sampling),
        stop: StopConditions {
            max_tokens,
            min_tokens: random.below(3) as u32,
            eos: EosPolicy::Ignore,
            ..StopConditions::default()
        },
        logprobs: (!some(random, 4)).then_some(5),
        prompt_logprobs: some(random, 12).then_some(2),
        masking: Masking::None,
        pooling: None,
    }
}

/// A request that asks for the best token each time and nothing else.
pub(super) fn greedy(random: &mut Random, limits: &ExecutorLimits, longest: usize) -> EngineRequest {
    EngineRequest {
        choices: NonZeroU32::MIN,
        sampling: Arc::new(SamplingParams { temperature: 0.0, ..SamplingParams::default() }),
        logprobs: None,
        prompt_logprobs: None,
        ..request(random, limits, longest)
    }
}

/// A request whose prompt goes on with what another one had and was answered.
pub(super) fn follow_up(
    first: &EngineRequest,
    answer: &Answer,
    limits: &ExecutorLimits,
) -> Option<EngineRequest> {
    let answered = first.stop.max_tokens as usize;
    let words = answer.choices.first()?;
    let stride = words.len() / answered;
    let said = (0..answered).map(|at| TokenId(words[at * stride]));
    let prompt: Vec<_> = first.prompt.iter().copied().chain(said).chain([TokenId(5), TokenId(6)]).collect();
    let fits = prompt.len() + answered <= limits.max_model_len;
    fits.then(|| EngineRequest { prompt: prompt.into(), ..first.clone() })
}

/// Waits for the end of a request.
pub(super) fn answer(mut stream: EventStream, request: &EngineRequest) -> Result<Answer> {
    let choices = vec![Vec::new(); request.choices.get() as usize];
    let mut answer = Answer { prompt: Vec::new(), choices };
    let mut finished = 0;
    while let Some(event) = stream.blocking_next() {
        match event {
            EngineEvent::PromptDone { logprobs, .. } => {
                logprobs.iter().flatten().for_each(|listed| put(listed, &mut answer.prompt));
            }
            EngineEvent::Token { choice, token, logprobs, .. } => {
                let words = &mut answer.choices[choice.0 as usize];
                words.push(token.0);
                logprobs.iter().for_each(|listed| put(listed, words));
            }
            EngineEvent::Failed(error) => bail!("it failed: {error}"),
            EngineEvent::Finished { .. } => finished += 1,
        }
    }
    ensure!(finished == answer.choices.len(), "the engine ended before {} choices did", answer.choices.len());
    Ok(answer)
}

fn put(listed: &LogProbs, words: &mut Vec<u32>) {
    let word = |of: &TokenLogProb| [of.token.0, of.rank, of.logprob.to_bits()];
    words.extend(std::iter::once(&listed.chosen).chain(&listed.top).flat_map(word));
}
