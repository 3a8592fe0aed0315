//! Steps of the CPU executor that an engine makes rarely or never.

mod common;

use common::{Chunk, by_id, load_safetensors, prompt_logprobs, sample_target, slot_start, step};
use oxide_infer::sampling::{SamplingParams, TokenMask};
use oxide_infer::{DType, PageId, TokenId};
use oxide_infer_engine::batch::{BatchRow, HiddenStates, PageCopy, PromptLogprobs, RowInput, SlotId};
use oxide_infer_engine::cpu::CpuExecutor;
use oxide_infer_engine::model::Architecture;
use oxide_infer_engine::testing::TinyModel;
use oxide_infer_engine::{EngineBatch, Executor, LogitsTap, StepOutput};
use serde_json::json;
use std::sync::Arc;

fn executor() -> CpuExecutor {
    load_safetensors(&TinyModel::new(Architecture::Llama, json!({})), DType::F32)
}

fn tokens(count: u32) -> Vec<TokenId> {
    (0..count).map(|i| TokenId((i * i + 5 * i + 3) % 128)).collect()
}

fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..SamplingParams::default() }
}

/// A step of one prompt in slot 0 that samples once.
fn prompt_step(prompt: &[TokenId], sampling: SamplingParams) -> EngineBatch {
    EngineBatch {
        slot_starts: vec![slot_start(0, prompt, sampling)],
        rows: vec![BatchRow {
            slot: SlotId(0),
            tokens: 0..prompt.len(),
            pages: 0..1,
            kv_len: prompt.len(),
            input: RowInput::Host,
            samples: 0..1,
            prompt_logprobs: None,
            hidden_states: HiddenStates::None,
        }],
        tokens: prompt.to_vec(),
        positions: (0..prompt.len() as u32).collect(),
        pages: vec![PageId(0)],
        samples: vec![sample_target(0, prompt.len())],
        ..EngineBatch::default()
    }
}

fn run(executor: &mut CpuExecutor, batch: &EngineBatch) -> StepOutput {
    let mut output = StepOutput::default();
    executor.submit(batch).unwrap();
    executor.collect(&mut output).unwrap();
    output
}

fn sampled(output: &StepOutput) -> TokenId {
    output.samples[0].outcome.as_ref().unwrap().token
}

#[test]
fn the_token_sampled_last_feeds_the_next_step() {
    let mut executor = executor();
    let prompt = tokens(20);
    let first = sampled(&run(&mut executor, &prompt_step(&prompt, greedy())));
    let fed_back = |input, token| {
        let mut batch = prompt_step(&prompt, greedy());
        batch.slot_starts.clear();
        batch.rows[0] = BatchRow { tokens: 0..1, kv_len: 21, input, ..batch.rows[0].clone() };
        (batch.tokens, batch.positions) = (vec![token], vec![20]);
        batch.samples[0].position = 21;
        batch.samples[0].logprobs = Some(128);
        batch
    };
    let by_host = run(&mut executor, &fed_back(RowInput::Host, first));
    // The slot's last token is now the second; start over to feed back the first.
    run(&mut executor, &prompt_step(&prompt, greedy()));
    let by_slot = run(&mut executor, &fed_back(RowInput::LastSampled, TokenId(0)));
    assert_eq!(by_slot.samples[0].outcome, by_host.samples[0].outcome);
}

#[test]
fn copied_pages_continue_a_sequence_and_leave_the_original_alone() {
    let mut executor = executor();
    let prompt = tokens(100);
    let expected = prompt_logprobs(&mut executor, &prompt, &[70, 100], &[4, 6], 128);

    // The first 70 tokens again, then a copy of the half-filled page that goes on differently.
    prompt_logprobs(&mut executor, &prompt, &[70], &[4, 6], 1);
    let mut batch = EngineBatch {
        page_copies: vec![PageCopy { from: PageId(6), to: PageId(7) }],
        ..EngineBatch::default()
    };
    run(&mut executor, &batch);
    let other = [&prompt[..70], &tokens(15)].concat();
    let chunk = |prompt, end, pages, next| Chunk { slot: 0, prompt, tokens: 70..end, pages, next };
    step(&mut executor, &[chunk(&other, 85, &[4, 7], &other[71..])], 1);
    let next = [&prompt[71..], &[TokenId(0)]].concat();
    let rest = step(&mut executor, &[chunk(&prompt, 100, &[4, 6], &next)], 128);
    assert_eq!(rest[0], expected[70..]);

    batch.page_copies[0].to = PageId(1 << 20);
    assert!(executor.submit(&batch).unwrap_err().message.contains("page 1048576 is copied; the pool has"));
}

#[test]
fn several_slots_draw_from_one_prompt_and_the_choices_differ() {
    let mut executor = executor();
    let prompt = tokens(30);
    let sampling = SamplingParams { temperature: 2.0, seed: 3, ..SamplingParams::default() };
    let mut batch = prompt_step(&prompt, sampling.clone());
    for slot in 1..6 {
        let mut start = slot_start(slot, &prompt, sampling.clone());
        start.choice.0 = slot;
        batch.slot_starts.push(start);
        batch.samples.push(sample_target(slot, 30));
    }
    batch.rows[0].samples = 0..6;
    let output = run(&mut executor, &batch);
    let drawn: Vec<_> =
        output.samples.iter().map(|s| (s.slot.0, s.outcome.as_ref().unwrap().token)).collect();
    assert_eq!(drawn.iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert!(drawn.iter().any(|(_, token)| *token != drawn[0].1), "{drawn:?}");
}

#[test]
fn masks_and_forbidden_tokens_bound_what_is_sampled() {
    let mut executor = executor();
    let prompt = tokens(10);
    let best = sampled(&run(&mut executor, &prompt_step(&prompt, greedy())));
    let mut batch = prompt_step(&prompt, greedy());
    batch.samples[0].forbidden = Arc::from([best]);
    let second = sampled(&run(&mut executor, &batch));
    assert_ne!(second, best);
    batch.samples[0].logprobs = Some(2);
    let output = run(&mut executor, &batch);
    let logprobs = output.samples[0].outcome.as_ref().unwrap().logprobs.clone().unwrap();
    assert_eq!((logprobs.chosen.token, logprobs.chosen.rank), (second, 2), "ranks are of the raw logits");
    assert_eq!(logprobs.top[0].token, best);

    let mut mask = TokenMask::none(128);
    mask.allow(TokenId(77));
    mask.allow(best);
    batch.samples[0].mask = Some(Arc::new(mask));
    assert_eq!(sampled(&run(&mut executor, &batch)), TokenId(77));
}

#[test]
fn a_row_that_cannot_be_sampled_fails_alone() {
    let mut executor = executor();
    let prompt = tokens(10);
    let mut batch = prompt_step(&prompt, greedy());
    batch.slot_starts.push(slot_start(1, &prompt, greedy()));
    batch.samples.push(sample_target(1, 10));
    batch.samples[0].mask = Some(Arc::new(TokenMask::none(128)));
    batch.rows[0].samples = 0..2;
    let output = run(&mut executor, &batch);
    let error = output.samples[0].outcome.as_ref().unwrap_err();
    assert_eq!(error.to_string(), "no token may be sampled: every logit is masked or −∞");
    assert!(output.samples[1].outcome.is_ok());

    // A prompt token past the vocabulary has no log-probability.
    batch.samples.clear();
    batch.rows[0].samples = 0..0;
    batch.rows[0].prompt_logprobs =
        Some(PromptLogprobs { next_tokens: vec![TokenId(5), TokenId(128)], top: 0 });
    let output = run(&mut executor, &batch);
    assert!(output.prompt_logprobs[0].as_ref().unwrap_err().to_string().contains("128"));
}

#[test]
fn a_step_that_cannot_be_computed_is_an_error_that_names_what_is_wrong() {
    let prompt = tokens(10);
    let good = prompt_step(&prompt, greedy());
    type Damage = fn(&mut EngineBatch);
    let cases: [(&str, Damage); 11] = [
        ("there is no slot 8", |batch| batch.slot_starts[0].slot = SlotId(8)),
        ("slot 3 is drawn for and has not started", |batch| batch.samples[0].slot = SlotId(3)),
        ("row 0 of the step has draws past the list", |batch| batch.rows[0].samples = 0..2),
        ("row 0 of the step has pages past the list", |batch| batch.rows[0].pages = 0..2),
        ("row 0 of the step does not begin where", |batch| batch.rows[0].tokens = 1..10),
        ("the rows of the step are not all of its tokens", |batch| batch.rows[0].tokens = 0..9),
        ("10 tokens with 9 positions", |batch| batch.positions.truncate(9)),
        ("a token that was not sampled", |batch| batch.rows[0].input = RowInput::LastSampled),
        ("ids[4] must be a token in 0..128, got 128", |batch| batch.tokens[4] = TokenId(128)),
        ("block_table[0][0] must be a page in 0..128, got 1048576", |batch| batch.pages[0] = PageId(1 << 20)),
        ("positions[9] must be in 0..64, got 64", |batch| batch.positions[9] = 64),
    ];
    for (words, damage) in cases {
        let mut executor = executor();
        let mut batch = good.clone();
        damage(&mut batch);
        let message = executor.submit(&batch).expect_err(words).message;
        assert!(message.contains(words), "{message:?} does not say {words:?}");
    }
    let mut executor = executor();
    assert_eq!(executor.collect(&mut StepOutput::default()).unwrap_err().message, "no step is in flight");
    executor.submit(&good).unwrap();
    assert!(executor.submit(&good).unwrap_err().message.contains("takes one at a time"));
}

#[test]
fn kept_logits_are_those_that_the_tokens_were_drawn_from() {
    let mut executor = executor();
    assert!(executor.logits().unwrap_err().message.contains("not kept"));
    executor.keep_logits();
    let prompt = tokens(40);
    let expected = prompt_logprobs(&mut executor, &prompt, &[40], &[3], 128).pop().unwrap();
    assert!(executor.logits().unwrap().is_empty(), "no row of that step drew");

    // Slot 0 draws twice from one row, slot 1 computes an inner chunk, slot 2 draws from the first half of the prompt.
    let mut batch = prompt_step(&prompt, greedy());
    batch.slot_starts.extend([1, 2].map(|slot| slot_start(slot, &prompt, greedy())));
    batch.samples = vec![sample_target(0, 40), sample_target(0, 40), sample_target(2, 20)];
    batch.rows[0].samples = 0..2;
    for (slot, page, samples) in [(1, 1, 2..2), (2, 2, 2..3)] {
        let start = batch.tokens.len();
        batch.tokens.extend_from_slice(&prompt[..20]);
        batch.positions.extend(0..20);
        batch.pages.push(PageId(page));
        batch.rows.push(BatchRow {
            slot: SlotId(slot),
            tokens: start..start + 20,
            pages: page as usize..page as usize + 1,
            kv_len: 20,
            samples,
            ..batch.rows[0].clone()
        });
    }
    executor.submit(&batch).unwrap();
    assert!(executor.logits().unwrap_err().message.contains("must be collected"));
    let mut output = StepOutput::default();
    executor.collect(&mut output).unwrap();
    let logits = executor.logits().unwrap();
    assert_eq!(logits.len(), 2 * 128);
    let row = &logits[..128];
    let best = (0..128).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
    assert_eq!(sampled(&output), TokenId(best as u32));
    // Logits are log-probabilities up to a constant.
    let logprobs = by_id(&expected);
    let shift = row[0] - logprobs[0];
    assert!(row.iter().zip(&logprobs).all(|(logit, logprob)| (logit - logprob - shift).abs() < 1e-4));
    assert_ne!(row, &logits[128..]);
}
