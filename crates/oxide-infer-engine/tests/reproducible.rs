//! With a real model on the CPU a request has the same tokens and the same log-probabilities, bit for bit, whatever else
//! runs, however its prompt is cut, and whether it is preempted, forked, overlapped or finds its prefix cached; also in steps
//! of prompts or of generated tokens alone, as a deterministic plan on a GPU has them.

use oxide_infer::sampling::{LogProbs, SamplingParams};
use oxide_infer::{DType, TokenId};
use oxide_infer_engine::cpu::{CpuOptions, KvMemory};
use oxide_infer_engine::model::Architecture;
use oxide_infer_engine::request::{Masking, Pooling, StopConditions};
use oxide_infer_engine::testing::TinyModel;
use oxide_infer_engine::{
    Engine, EngineBatch, EngineConfig, EngineEvent, EngineHandle, EngineRequest, Executor, ExecutorError,
    ExecutorLimits, ModelSource, PrefixCache, StepKind, StepMix, StepOutput, load_cpu,
};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::{Arc, LazyLock};

/// Everything that a choice brought.
type Answer = Vec<(TokenId, Option<LogProbs>)>;

/// How the engine is set up.
#[derive(Clone, Copy, Debug)]
struct Setup {
    max_batch_tokens: usize,
    max_sequences: usize,
    num_pages: usize,
    order: Order,
    prefix_cache: PrefixCache,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Plain,
    Overlapped,
    /// Overlapped, prompts and generated tokens in steps of their own.
    Apart,
}

const ROOMY: Setup = Setup {
    max_batch_tokens: 256,
    max_sequences: 8,
    num_pages: 64,
    order: Order::Plain,
    prefix_cache: PrefixCache::Disabled,
};

/// Tokens in the longest sequence: three pages of 64.
const MAX_MODEL_LEN: usize = 192;

static MODEL: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let model = TinyModel::new(Architecture::Llama, serde_json::json!({}));
    model.write_safetensors(dir.path(), DType::F32).unwrap();
    dir
});

fn start(setup: Setup) -> EngineHandle {
    let options = |kv_memory| CpuOptions {
        threads: NonZeroUsize::new(2),
        max_model_len: Some(MAX_MODEL_LEN),
        max_batch_tokens: setup.max_batch_tokens,
        max_sequences: setup.max_sequences,
        kv_memory: KvMemory(kv_memory),
    };
    let source = ModelSource::open(MODEL.path()).unwrap();
    let one_page = PAGE_BYTES * setup.num_pages as u64;
    let executor = load_cpu(&source, &options(one_page), &mut |_| ()).unwrap();
    assert_eq!(executor.limits().num_pages, setup.num_pages);
    let config = EngineConfig { prefix_cache: setup.prefix_cache, ..EngineConfig::default() };
    let executor: Box<dyn Executor> = match setup.order {
        Order::Plain => Box::new(executor),
        Order::Overlapped => Box::new(Delayed::new(executor, StepMix::Mixed)),
        Order::Apart => Box::new(Delayed::new(executor, StepMix::Apart)),
    };
    Engine::start(executor, config).unwrap()
}

/// 2 layers of keys and values, 2 heads of 16 numbers, 64 tokens, 4 bytes each.
const PAGE_BYTES: u64 = 2 * 2 * 2 * 16 * 64 * 4;

/// Takes two steps and computes each when it is collected, as a device would that the engine runs ahead of.
struct Delayed<E> {
    inner: E,
    waiting: VecDeque<EngineBatch>,
    step_mix: StepMix,
}

impl<E> Delayed<E> {
    fn new(inner: E, step_mix: StepMix) -> Self {
        Self { inner, waiting: VecDeque::new(), step_mix }
    }
}

impl<E: Executor> Executor for Delayed<E> {
    fn limits(&self) -> ExecutorLimits {
        ExecutorLimits { steps_in_flight: 2, step_mix: self.step_mix, ..self.inner.limits() }
    }

    fn submit(&mut self, batch: &EngineBatch) -> Result<(), ExecutorError> {
        let kinds_are_apart = batch.kind != StepKind::Mixed;
        assert_eq!(kinds_are_apart, self.step_mix == StepMix::Apart);
        self.waiting.push_back(batch.clone());
        Ok(())
    }

    fn collect(&mut self, output: &mut StepOutput) -> Result<(), ExecutorError> {
        self.inner.submit(&self.waiting.pop_front().unwrap())?;
        self.inner.collect(output)
    }
}

/// Submits all requests at once and reads every choice of every one.
fn answers(engine: &EngineHandle, requests: &[EngineRequest]) -> Vec<Vec<Answer>> {
    let streams: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    let read = |(mut stream, request): (oxide_infer_engine::EventStream, &EngineRequest)| {
        let mut answers = vec![Answer::new(); request.choices.get() as usize];
        while let Some(event) = stream.blocking_next() {
            match event {
                EngineEvent::Token { choice, token, logprobs, .. } => {
                    answers[choice.0 as usize].push((token, logprobs));
                }
                EngineEvent::Failed(error) => panic!("{error}"),
                EngineEvent::PromptDone { .. } | EngineEvent::Finished { .. } => {}
            }
        }
        answers
    };
    streams.into_iter().zip(requests).map(read).collect()
}

/// Every request on an engine of its own.
fn alone(requests: &[EngineRequest]) -> Vec<Vec<Answer>> {
    requests.iter().flat_map(|request| answers(&start(ROOMY), std::slice::from_ref(request))).collect()
}

fn request(
    prompt: impl IntoIterator<Item = u32>,
    max_tokens: u32,
    sampling: SamplingParams,
) -> EngineRequest {
    EngineRequest {
        prompt: prompt.into_iter().map(|id| TokenId(id % 128)).collect(),
        choices: NonZeroU32::MIN,
        sampling: Arc::new(sampling),
        stop: StopConditions { max_tokens, ..Default::default() },
        logprobs: Some(3),
        prompt_logprobs: None,
        masking: Masking::None,
        pooling: None,
    }
}

fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..Default::default() }
}

fn seeded(seed: u64) -> SamplingParams {
    SamplingParams { seed, top_p: 0.95, repetition_penalty: 1.1, presence_penalty: 0.2, ..Default::default() }
}

/// Requests that cross page boundaries, greedy and seeded, two of which begin alike.
fn some_requests() -> Vec<EngineRequest> {
    let forked = EngineRequest { choices: NonZeroU32::new(3).unwrap(), ..request(5..75, 30, seeded(9)) };
    vec![
        request(0..100, 40, greedy()),
        request((0..90).chain([7, 3]), 45, seeded(1)),
        request([5], 70, seeded(2)),
        request(30..94, 20, greedy()),
        forked,
    ]
}

#[test]
fn in_a_batch_in_chunks_and_overlapped() {
    let requests = some_requests();
    let expected = alone(&requests);
    for order in [Order::Plain, Order::Overlapped, Order::Apart] {
        assert_eq!(answers(&start(Setup { order, ..ROOMY }), &requests), expected);
        // 13 tokens a step cut every prompt into pieces.
        let chunked = Setup { max_batch_tokens: 13, order, ..ROOMY };
        assert_eq!(answers(&start(chunked), &requests), expected);
    }
}

#[test]
fn with_a_warm_prefix_cache() {
    let requests = some_requests();
    let expected = alone(&requests);
    for order in [Order::Overlapped, Order::Apart] {
        let engine = start(Setup { prefix_cache: PrefixCache::Enabled, order, ..ROOMY });
        for _ in 0..2 {
            assert_eq!(answers(&engine, &requests), expected);
        }
        assert!(engine.metrics().snapshot().prefix_cache_hits >= 2 * 64, "{:?}", engine.metrics().snapshot());
    }
}

#[test]
fn preempted_and_computed_again() {
    let requests = some_requests();
    let expected = alone(&requests);
    for order in [Order::Plain, Order::Overlapped, Order::Apart] {
        for prefix_cache in [PrefixCache::Disabled, PrefixCache::Enabled] {
            let engine = start(Setup { num_pages: 5, prefix_cache, order, ..ROOMY });
            assert_eq!(answers(&engine, &requests), expected);
            assert!(engine.metrics().snapshot().preemptions > 0);
        }
    }
}

#[test]
fn the_first_of_several_choices_is_the_answer_of_one() {
    let one = request(5..75, 30, seeded(9));
    let three = EngineRequest { choices: NonZeroU32::new(3).unwrap(), ..one.clone() };
    let answers = alone(&[one, three]);
    assert_eq!(answers[0][0], answers[1][0]);
    assert!(answers[1][0] != answers[1][1] && answers[1][1] != answers[1][2]);
}

#[test]
fn prompt_log_probabilities_do_not_depend_on_the_cache_or_the_chunks() {
    let scored = EngineRequest { prompt_logprobs: Some(2), ..request(0..150, 2, greedy()) };
    let found = |engine: &EngineHandle| {
        let mut stream = engine.submit(scored.clone()).unwrap();
        std::iter::from_fn(|| stream.blocking_next())
            .find_map(|event| match event {
                EngineEvent::PromptDone { logprobs, .. } => logprobs,
                _ => None,
            })
            .unwrap()
    };
    let expected = found(&start(ROOMY));
    assert_eq!(expected.len(), 149);
    let engine = start(Setup { max_batch_tokens: 40, prefix_cache: PrefixCache::Enabled, ..ROOMY });
    for _ in 0..2 {
        assert_eq!(found(&engine), expected);
    }
}

/// The pooled hidden states of requests that are submitted at once.
fn pooled(engine: &EngineHandle, requests: &[EngineRequest]) -> Vec<Vec<f32>> {
    let streams: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    let read = |mut stream: oxide_infer_engine::EventStream| {
        std::iter::from_fn(|| stream.blocking_next())
            .find_map(|event| match event {
                EngineEvent::PromptDone { pooled, .. } => pooled,
                other => panic!("{other:?}"),
            })
            .unwrap()
    };
    streams.into_iter().map(read).collect()
}

#[test]
fn pooled_hidden_states_do_not_depend_on_company_chunks_preemption_or_cache() {
    let requests: Vec<_> = [Pooling::Last, Pooling::Mean]
        .into_iter()
        .flat_map(|pooling| {
            let of = |prompt: std::ops::Range<u32>| EngineRequest {
                pooling: Some(pooling),
                ..request(prompt, 9, greedy())
            };
            [of(0..150), of(5..69), of(3..4)]
        })
        .collect();
    let one = |request: &EngineRequest| pooled(&start(ROOMY), std::slice::from_ref(request)).remove(0);
    let expected: Vec<_> = requests.iter().map(one).collect();
    // Of one token both are the same.
    assert_eq!(expected[2], expected[5]);
    assert_ne!(expected[0], expected[3]);
    for (order, prefix_cache) in
        [(Order::Plain, PrefixCache::Enabled), (Order::Overlapped, PrefixCache::Disabled)]
    {
        let engine = start(Setup { max_batch_tokens: 40, num_pages: 5, prefix_cache, order, ..ROOMY });
        let _company = engine.submit(request(0..60, 70, greedy())).unwrap();
        for _ in 0..2 {
            assert_eq!(pooled(&engine, &requests), expected);
        }
    }
}

fn any_request() -> impl Strategy<Value = EngineRequest> {
    (0u32..3, 1u32..110, 1u32..70, prop::option::of(any::<u64>()), 1u32..4).prop_map(
        |(family, length, max_tokens, seed, choices)| EngineRequest {
            choices: NonZeroU32::new(choices).unwrap(),
            ..request((0..length).map(|at| at * (family + 1)), max_tokens, seed.map_or(greedy(), seeded))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn in_any_company_on_any_engine(
        requests in prop::collection::vec(any_request(), 1..6),
        max_batch_tokens in 8usize..80,
        num_pages in 3usize..12,
        order in prop::sample::select(vec![Order::Plain, Order::Overlapped, Order::Apart]),
        cached in any::<bool>(),
    ) {
        let prefix_cache = if cached { PrefixCache::Enabled } else { PrefixCache::Disabled };
        let engine = start(Setup { max_batch_tokens, max_sequences: 8, num_pages, order, prefix_cache });
        prop_assert_eq!(answers(&engine, &requests), alone(&requests));
    }
}
