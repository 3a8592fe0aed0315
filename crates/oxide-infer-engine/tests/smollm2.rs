//! The demo model on the CPU, against two other engines in float32 (`testdata/cases/smollm2.json`).

mod common;

use oxide_infer::TokenId;
use oxide_infer::sampling::SamplingParams;
use oxide_infer_engine::cpu::{CpuExecutor, CpuOptions, KvMemory};
use oxide_infer_engine::request::{Masking, Pooling, StopConditions};
use oxide_infer_engine::{
    Engine, EngineConfig, EngineEvent, EngineHandle, EngineRequest, EventStream, ModelSource, load_cpu,
};
use serde_json::Value;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::{Arc, LazyLock};

/// Steps whose best two logits are closer than this may go either way.
const CLEAR_MARGIN: f64 = 0.01;
const LOGPROB_TOLERANCE: f64 = 0.005;
/// Of the difference of two vectors, as a part of their length.
const POOLED_TOLERANCE: f64 = 0.005;

/// One engine for all tests: the model is loaded once, and later tests meet pages that earlier ones left.
fn engine() -> &'static EngineHandle {
    static ENGINE: LazyLock<EngineHandle> =
        LazyLock::new(|| Engine::start(Box::new(executor()), EngineConfig::default()).unwrap());
    &ENGINE
}

fn executor() -> CpuExecutor {
    let options = CpuOptions { kv_memory: KvMemory(256 << 20), ..CpuOptions::default() };
    let mut last = None;
    let executor = load_cpu(&ModelSource::open(&common::demo_model()).unwrap(), &options, &mut |progress| {
        last = Some(progress)
    });
    let last = last.unwrap();
    assert_eq!((last.tensors_done, last.bytes_done), (last.tensors, last.bytes));
    executor.unwrap()
}

fn cases() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/cases/smollm2.json");
    let text = std::fs::read_to_string(path).unwrap();
    let mut cases: Value = serde_json::from_str(&text).unwrap();
    std::mem::take(cases["cases"].as_array_mut().unwrap())
}

fn ids(value: &Value) -> Vec<TokenId> {
    value.as_array().unwrap().iter().map(|id| TokenId(id.as_u64().unwrap() as u32)).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// The expected answer of a case.
struct Expected {
    name: String,
    prompt: Vec<TokenId>,
    ids: Vec<TokenId>,
    margins: Vec<f64>,
    logprobs: Vec<f64>,
}

impl Expected {
    fn of(case: &Value) -> Self {
        Self {
            name: case["id"].to_string(),
            prompt: ids(&case["prompt_ids"]),
            ids: ids(&case["new_ids"]),
            margins: numbers(&case["margins"]),
            logprobs: numbers(&case["logprobs"]),
        }
    }
}

fn submit(prompt: &[TokenId], max_tokens: u32, prompt_logprobs: Option<u32>) -> EventStream {
    engine().submit(greedy_request(prompt, max_tokens, prompt_logprobs)).unwrap()
}

fn greedy_request(prompt: &[TokenId], max_tokens: u32, prompt_logprobs: Option<u32>) -> EngineRequest {
    EngineRequest {
        prompt: prompt.into(),
        choices: NonZeroU32::MIN,
        sampling: Arc::new(SamplingParams { temperature: 0.0, ..SamplingParams::default() }),
        stop: StopConditions { max_tokens, ..StopConditions::default() },
        logprobs: Some(5),
        prompt_logprobs,
        masking: Masking::None,
        pooling: None,
    }
}

/// Hidden states of transformers over the same dequantized weights; activations are in float32 here and there.
#[test]
fn pooled_hidden_states_are_those_of_another_engine() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/cases/smollm2_embeddings.json");
    let text = std::fs::read_to_string(path).unwrap();
    let reference: Value = serde_json::from_str(&text).unwrap();
    for case in reference["cases"].as_array().unwrap() {
        for (field, pooling) in [("last", Pooling::Last), ("mean", Pooling::Mean)] {
            let request = EngineRequest {
                pooling: Some(pooling),
                logprobs: None,
                ..greedy_request(&ids(&case["prompt_ids"]), 0, None)
            };
            let mut stream = engine().submit(request).unwrap();
            let Some(EngineEvent::PromptDone { pooled: Some(pooled), .. }) = stream.blocking_next() else {
                panic!("{}: no vector", case["case"])
            };
            let expected = numbers(&case[field]);
            assert_eq!(pooled.len(), expected.len());
            let norm = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
            let difference =
                pooled.iter().zip(&expected).map(|(x, y)| (f64::from(*x) - y).powi(2)).sum::<f64>();
            assert!(
                difference.sqrt() < POOLED_TOLERANCE * norm,
                "{} {field}: {}",
                case["case"],
                difference.sqrt() / norm
            );
        }
    }
}

/// Every case as one request whose prompt is prompt and answer, all at once: each step is judged on the expected prefix.
#[test]
fn every_step_after_the_expected_prefix_is_the_expected_token() {
    let cases = cases();
    let expected: Vec<_> = cases.iter().map(Expected::of).collect();
    let submit = |case: &Expected| submit(&[&case.prompt[..], &case.ids].concat(), 1, Some(5));
    let streams: Vec<_> = expected.iter().map(submit).collect();
    for ((case, expected), mut stream) in cases.iter().zip(&expected).zip(streams) {
        let Some(EngineEvent::PromptDone { logprobs: Some(logprobs), .. }) = stream.blocking_next() else {
            panic!("{}: no prompt log-probabilities", expected.name)
        };
        // The first entry is of the second token.
        let steps = &logprobs[expected.prompt.len() - 1..];
        assert_eq!(steps.len(), 48);
        for (step, found) in steps.iter().enumerate() {
            let (id, logprob) = (expected.ids[step], expected.logprobs[step]);
            let place = format!("{} step {step}", expected.name);
            assert_eq!(found.chosen.token, id);
            if expected.margins[step] > CLEAR_MARGIN {
                assert_eq!(found.top[0].token, id, "{place}");
            }
            let difference = (f64::from(found.chosen.logprob) - logprob).abs();
            assert!(difference < LOGPROB_TOLERANCE, "{place}: {difference}");
        }
        for (found, expected) in steps[0].top.iter().zip(case["first_step_top5"].as_array().unwrap()) {
            assert_eq!(u64::from(found.token.0), expected[0].as_u64().unwrap());
            assert!((f64::from(found.logprob) - expected[1].as_f64().unwrap()).abs() < LOGPROB_TOLERANCE);
        }
    }
}

/// Every case left to itself, all at once: ids are equal up to the first step that may go either way.
#[test]
fn free_greedy_answers_are_the_expected_ones() {
    let expected: Vec<_> = cases().iter().map(Expected::of).collect();
    let streams: Vec<_> = expected.iter().map(|case| submit(&case.prompt, 48, None)).collect();
    for (expected, mut stream) in expected.iter().zip(streams) {
        let mut step = 0;
        while let Some(event) = stream.blocking_next() {
            let EngineEvent::Token { token, logprobs, .. } = event else { continue };
            let place = format!("{} step {step}", expected.name);
            if token != expected.ids[step] {
                assert!(
                    expected.margins[step] <= CLEAR_MARGIN,
                    "{place}: {token}, not {}",
                    expected.ids[step]
                );
                break;
            }
            let difference = (f64::from(logprobs.unwrap().chosen.logprob) - expected.logprobs[step]).abs();
            assert!(difference < LOGPROB_TOLERANCE, "{place}: {difference}");
            step += 1;
        }
        assert!(step == 48 || expected.margins[step] <= CLEAR_MARGIN, "{} ended at {step}", expected.name);
    }
}
