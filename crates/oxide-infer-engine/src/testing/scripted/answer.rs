//! The fake model: digests of sequences, and tokens chosen from them.

use super::Draw;
use crate::batch::ExecutorLimits;
use crate::request::{ChoiceIndex, EngineRequest, EosPolicy, Pooling};
use oxide_infer::TokenId;
use oxide_infer::sampling::{LogProbs, TokenLogProb, TokenMask};
use std::sync::Arc;

/// Digest of no tokens.
pub(super) const EMPTY_CONTEXT: u64 = 0x9e37_79b9_7f4a_7c15;

/// The digest after one more token.
pub(super) fn extend(context: u64, token: TokenId) -> u64 {
    // The finalizer of splitmix64 (Steele, Lea and Flood 2014).
    let mut mixed = context.wrapping_add(u64::from(token.0) + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^= mixed >> 27;
    mixed = mixed.wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The next token as a hash of the sequence and, unless greedy, of seed, choice and position; with a repetition penalty
/// also of what the slot says has been generated.
pub(super) fn hash_token(draw: Draw<'_>, vocab_size: usize) -> TokenId {
    let mut hash = draw.context;
    if draw.sampling.temperature > 0.0 {
        let position = (draw.prompt.len() + draw.output.len()) as u32;
        for part in [draw.sampling.seed as u32, draw.choice.0, position] {
            hash = extend(hash, TokenId(part));
        }
    }
    if draw.sampling.repetition_penalty != 1.0 {
        hash = draw.output.iter().fold(hash, |hash, token| extend(hash, *token));
    }
    TokenId((hash % vocab_size as u64) as u32)
}

/// The first allowed token from `wanted` on, going around at the vocabulary's end.
pub(super) fn allowed(
    wanted: TokenId,
    vocab_size: usize,
    mask: Option<&TokenMask>,
    forbidden: &[TokenId],
) -> Option<TokenId> {
    let admitted =
        |token: &TokenId| mask.is_none_or(|mask| mask.allows(*token)) && !forbidden.contains(token);
    let vocab = vocab_size as u32;
    (wanted.0..vocab).chain(0..wanted.0.min(vocab)).map(TokenId).find(admitted)
}

/// Made-up log-probabilities that depend on the context: the token's own, and falling ones for the `top` ids from it on.
pub(super) fn logprobs(token: TokenId, context: u64, top: u32, vocab_size: usize) -> LogProbs {
    let best = -((context % 1024) as f32) / 1024.0;
    let ids = (token.0..vocab_size as u32).chain(0..token.0).map(TokenId);
    let ranked = ids.zip(0u16..).map(|(token, behind)| TokenLogProb {
        token,
        logprob: best - f32::from(behind),
        rank: u32::from(behind) + 1,
    });
    LogProbs {
        chosen: TokenLogProb { token, logprob: best, rank: 1 },
        top: ranked.take(top as usize).collect(),
    }
}

/// Elements of a made-up hidden state.
pub(super) const HIDDEN_SIZE: usize = 3;

/// A made-up hidden state that depends on the context.
pub(super) fn hidden_state(context: u64) -> [f32; HIDDEN_SIZE] {
    std::array::from_fn(|at| ((context >> (16 * at)) as u16) as f32 / 256.0 - 100.0)
}

/// What a prompt's pooled hidden state must be when [`ScriptedExecutor::new`](super::ScriptedExecutor::new) computes it.
pub fn expected_pooled(prompt: &[TokenId], pooling: Pooling) -> Vec<f32> {
    let states: Vec<_> = prompt_contexts(prompt).map(hidden_state).collect();
    let of = |at: usize| match pooling {
        Pooling::Last => states.last().map_or(0.0, |state| state[at]),
        Pooling::Mean => {
            let sum: f64 = states.iter().map(|state| f64::from(state[at])).sum();
            (sum / states.len() as f64) as f32
        }
    };
    (0..HIDDEN_SIZE).map(of).collect()
}

/// What a choice of a request must answer when [`ScriptedExecutor::new`](super::ScriptedExecutor::new) computes it,
/// worked out one token after the other with no pages, batches or steps. `mask(i)` is the mask for token `i`.
pub fn expected_answer(
    request: &EngineRequest,
    choice: ChoiceIndex,
    limits: &ExecutorLimits,
    mask: impl Fn(u32) -> Option<Arc<TokenMask>>,
) -> Vec<TokenId> {
    let stop = &request.stop;
    let eos = if stop.eos == EosPolicy::Stop { &stop.eos_token_ids[..] } else { &[] };
    let endings: Vec<_> = eos.iter().chain(stop.stop_token_ids.iter()).copied().collect();
    let mut context = prompt_contexts(&request.prompt).last().unwrap_or(EMPTY_CONTEXT);
    let mut output = Vec::new();
    while output.len() < stop.max_tokens as usize
        && request.prompt.len() + output.len() < limits.max_model_len
    {
        let draw =
            Draw { prompt: &request.prompt, output: &output, choice, sampling: &request.sampling, context };
        let wanted = hash_token(draw, limits.vocab_size);
        let mask = mask(output.len() as u32);
        let forbidden = if output.len() < stop.min_tokens as usize { &endings[..] } else { &[] };
        // A mask that allows nothing but endings goes before `min_tokens`.
        let token = allowed(wanted, limits.vocab_size, mask.as_deref(), forbidden)
            .or_else(|| allowed(wanted, limits.vocab_size, mask.as_deref(), &[]));
        let Some(token) = token else { break };
        output.push(token);
        context = extend(context, token);
        if endings.contains(&token) {
            break;
        }
    }
    output
}

/// The log-probabilities that [`ScriptedExecutor::new`](super::ScriptedExecutor::new) finds for the tokens of a prompt
/// after the first.
pub fn expected_prompt_logprobs(prompt: &[TokenId], top: u32, limits: &ExecutorLimits) -> Vec<LogProbs> {
    let next = prompt.iter().skip(1).zip(prompt_contexts(prompt));
    next.map(|(token, context)| logprobs(*token, context, top, limits.vocab_size)).collect()
}

/// The digests up to each token of a prompt.
fn prompt_contexts(prompt: &[TokenId]) -> impl Iterator<Item = u64> {
    prompt.iter().scan(EMPTY_CONTEXT, |context, token| {
        *context = extend(*context, *token);
        Some(*context)
    })
}
