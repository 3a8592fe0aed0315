//! The executor over a simulated device, which copies and fills memory and computes nothing: what is proven here is which
//! work is enqueued, over which memory, and that nothing of it is lost or freed early.

use super::{
    ArtifactSource, CoverageError, CudaExecutor, CudaLoadError, CudaOptions, CudaPlanError, DecodeLaunch,
    check_coverage, load_cuda_on,
};
use crate::batch::{
    BatchRow, EngineBatch, Executor, HiddenStates, LogitsTap, PlanGoal, PromptLogprobs, RowInput,
    SampleTarget, SlotId, SlotStart, StepKind,
};
use crate::model::Architecture;
use crate::request::{ChoiceIndex, Masking, RequestError, StopConditions, SubmitError};
use crate::testing::TinyModel;
use crate::{Engine, EngineConfig, EngineEvent, EngineHandle, EngineRequest, Health, ModelSource};
use oxide_infer::sampling::SamplingParams;
use oxide_infer::{DType, PageId, TokenId};
use oxide_infer_cuda::artifact::{Registry, Target};
use oxide_infer_cuda::driver::simulated::{Ran, SimulatedDriver};
use oxide_infer_cuda::runtime::{Context, MemoryPlanError, Span};
use serde_json::{Value, json};
use std::num::NonZeroU32;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

const OPTIONS: CudaOptions = CudaOptions {
    max_model_len: Some(256),
    max_batch_tokens: 48,
    max_sequences: 6,
    kv_memory: Some(1 << 20),
    decode_launch: DecodeLaunch::Graph,
    artifacts: ArtifactSource::Embedded,
    goal: PlanGoal::Fastest,
};

fn fields() -> Value {
    json!({
        "hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 2, "num_key_value_heads": 1,
        "vocab_size": 256, "max_position_embeddings": 512, "tie_word_embeddings": true
    })
}

/// A model in the artifacts' domains, with fields replaced.
fn source(architecture: Architecture, changes: Value) -> (tempfile::TempDir, ModelSource) {
    let dir = tempfile::tempdir().unwrap();
    let mut fields = fields();
    for (name, value) in changes.as_object().into_iter().flatten() {
        fields[name] = value.clone();
    }
    TinyModel::new(architecture, fields).write_safetensors(dir.path(), DType::BF16).unwrap();
    let source = ModelSource::open(dir.path()).unwrap();
    (dir, source)
}

struct Device {
    driver: Arc<SimulatedDriver>,
    context: Context,
}

fn device() -> Device {
    let driver = SimulatedDriver::new();
    let context = Context::primary_on(driver.clone(), 0).unwrap();
    Device { driver, context }
}

fn load(device: &Device, options: &CudaOptions) -> Result<CudaExecutor, CudaLoadError> {
    let (_dir, source) = source(Architecture::Llama, json!({}));
    load_cuda_on(&device.context, &source, options, &mut |_| ())
}

fn engine(device: &Device) -> EngineHandle {
    let executor = load(device, &OPTIONS).unwrap();
    Engine::start(Box::new(executor), EngineConfig::default()).unwrap()
}

fn request(prompt_len: usize, max_tokens: u32, sampling: SamplingParams) -> EngineRequest {
    EngineRequest {
        prompt: (0..prompt_len as u32).map(|token| TokenId(token % 200 + 3)).collect(),
        choices: NonZeroU32::MIN,
        sampling: Arc::new(sampling),
        stop: StopConditions { max_tokens, ..Default::default() },
        logprobs: None,
        prompt_logprobs: None,
        masking: Masking::None,
        pooling: None,
    }
}

fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..Default::default() }
}

/// Tokens of a request, and how it ended.
fn answer(engine: &EngineHandle, request: EngineRequest) -> (usize, Option<RequestError>) {
    let mut stream = engine.submit(request).unwrap();
    let (mut tokens, mut failed) = (0, None);
    while let Some(event) = stream.blocking_next() {
        match event {
            EngineEvent::Token { .. } => tokens += 1,
            EngineEvent::Failed(error) => failed = Some(error),
            _ => {}
        }
    }
    (tokens, failed)
}

#[test]
fn a_model_is_loaded_and_answers_with_every_way_to_sample() {
    let device = device();
    let engine = engine(&device);
    assert_eq!(answer(&engine, request(100, 5, greedy())), (5, None));
    let penalties = SamplingParams { repetition_penalty: 1.1, seed: 3, ..Default::default() };
    assert_eq!(answer(&engine, request(70, 4, penalties)), (4, None));
    let biased =
        SamplingParams { logit_bias: Arc::from([(TokenId(4), 1.0), (TokenId(2), -1.0)]), ..greedy() };
    assert_eq!(answer(&engine, request(1, 3, biased)), (3, None));
    let logprobs = EngineRequest { logprobs: Some(3), prompt_logprobs: Some(2), ..request(60, 3, greedy()) };
    assert_eq!(answer(&engine, logprobs), (3, None));
    let choices = EngineRequest { choices: NonZeroU32::new(3).unwrap(), ..request(65, 3, greedy()) };
    assert_eq!(answer(&engine, choices), (9, None));
    assert_eq!(device.driver.violations(), Vec::<String>::new());
    let counted: u64 = engine.operators().snapshot().map(|(_, count)| count).sum();
    assert!(counted > 0 && device.driver.launches() as u64 >= counted);
    let used = engine.operators().used().unwrap();
    let registry = Registry::embedded(Target::hopper()).unwrap();
    assert_eq!(used.sha256, registry.digest().to_string());
    assert!(!used.executed.is_empty() && used.executed.is_sorted(), "{used:?}");
    assert!(used.executed.iter().all(|name| registry.artifact(name).is_some()), "{used:?}");
}

#[test]
fn as_many_best_tokens_are_listed_as_the_kernel_has_and_more_are_refused() {
    let engine = engine(&device());
    let listing = |count| EngineRequest { logprobs: Some(count), ..request(5, 1, greedy()) };
    let mut stream = engine.submit(listing(32)).unwrap();
    let listed = std::iter::from_fn(|| stream.blocking_next()).find_map(|event| match event {
        EngineEvent::Token { logprobs, .. } => Some(logprobs.map_or(0, |logprobs| logprobs.top.len())),
        _ => None,
    });
    assert_eq!(listed, Some(32));
    let refused = engine.submit(listing(33)).map(|_| ()).unwrap_err();
    assert_eq!(refused, SubmitError::TooManyLogprobs { field: "logprobs", wanted: 33, limit: 32 });
}

#[test]
fn a_batch_that_asks_for_more_best_tokens_than_the_kernel_lists_is_refused() {
    let mut executor = load(&device(), &OPTIONS).unwrap();
    let batch = EngineBatch {
        rows: vec![BatchRow {
            slot: SlotId(0),
            tokens: 0..1,
            pages: 0..1,
            kv_len: 1,
            input: RowInput::Host,
            samples: 0..0,
            prompt_logprobs: Some(PromptLogprobs { next_tokens: vec![TokenId(4)], top: 40 }),
            hidden_states: HiddenStates::None,
        }],
        tokens: vec![TokenId(3)],
        positions: vec![0],
        pages: vec![PageId(0)],
        ..EngineBatch::default()
    };
    let message = executor.submit(&batch).unwrap_err().message;
    assert_eq!(message, "row 0 of the step asks for the 40 best tokens; at most 32 are listed");
}

#[test]
fn everything_is_freed_when_the_engine_ends() {
    let device = device();
    let engine = engine(&device);
    assert_eq!(answer(&engine, request(10, 2, greedy())).0, 2);
    let during = device.driver.live_allocations();
    for _ in 0..20 {
        assert_eq!(answer(&engine, request(30, 2, greedy())).0, 2);
    }
    assert_eq!(device.driver.live_allocations(), during);
    drop(engine);
    let Device { driver, context } = device;
    drop(context);
    let ended = || driver.live_allocations() == 0 && driver.live_handles() == 0;
    for _ in 0..500 {
        if ended() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(ended(), "{} allocations, {} handles", driver.live_allocations(), driver.live_handles());
    assert_eq!(driver.violations(), Vec::<String>::new());
}

#[test]
fn a_lost_device_fails_every_request_and_turns_the_health_red() {
    let device = device();
    let engine = engine(&device);
    device.driver.hold();
    let streams: Vec<_> = (0..4).map(|_| engine.submit(request(20, 50, greedy())).unwrap()).collect();
    // An illegal address, which ends the context.
    device.driver.break_device(700);
    for mut stream in streams {
        let mut failed = false;
        while let Some(event) = stream.blocking_next() {
            failed |= matches!(event, EngineEvent::Failed(_));
        }
        assert!(failed);
    }
    assert!(matches!(engine.health(), Health::Failed(message) if message.contains("700")));
}

#[test]
fn a_model_with_operators_that_no_artifact_has_names_them_all() {
    let registry = Registry::embedded(Target::hopper()).unwrap();
    let (_dir, source) = source(
        Architecture::Llama,
        json!({"head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "mlp_bias": true}),
    );
    let Err(CoverageError::Uncovered(error)) = check_coverage(source.config(), &registry, &OPTIONS) else {
        panic!("it is not covered");
    };
    let names: Vec<_> = error.operators.iter().map(|operator| operator.operator.as_str()).collect();
    assert_eq!(
        names,
        [
            "rotary embedding and append",
            "attention",
            // Gate and up with their biases, and the activation of both.
            "an operator of the decoder",
            "an operator of the decoder",
            "an operator of the decoder",
            "down projection",
            "attention",
        ]
    );
    let text = error.to_string();
    for wanted in
        ["attention.paged_decode", "attention.paged_prefill", "head_dim=32", "residual=present", "Gate"]
    {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    let device = device();
    let loaded = load_cuda_on(&device.context, &source, &OPTIONS, &mut |_| ());
    assert!(matches!(loaded, Err(CudaLoadError::Uncovered(_))));
    assert_eq!(device.driver.live_allocations(), 0);
}

#[test]
fn options_that_do_not_fit_say_what_would() {
    let device = device();
    let refused = |options: CudaOptions| load(&device, &options).unwrap_err().to_string();
    let small = refused(CudaOptions { kv_memory: Some(1 << 17), ..OPTIONS });
    assert!(small.contains("one sequence of 256 tokens needs"), "{small}");
    let long = refused(CudaOptions { max_model_len: Some(1000), ..OPTIONS });
    assert_eq!(long, "max_model_len is 1000; the model was made for 512 positions");
    let few = refused(CudaOptions { max_batch_tokens: 2, ..OPTIONS });
    assert_eq!(few, "max_batch_tokens is 2; it must be from 6 to 65536");
    let huge = refused(CudaOptions { kv_memory: Some(1 << 40), ..OPTIONS });
    assert!(huge.contains("it would fit with") && huge.contains("KV pages"), "{huge}");
    assert_eq!(device.driver.live_allocations(), 0);
}

#[test]
fn a_device_that_is_too_small_for_the_model_says_what_is_missing_and_what_would_fit() {
    let device = device();
    let by_default = CudaOptions { kv_memory: None, ..OPTIONS };
    let needed = |free: u64| {
        device.driver.set_memory(free);
        match load(&device, &by_default) {
            Err(CudaLoadError::Memory(error)) => error,
            other => panic!("{:?}", other.map(|_| ())),
        }
    };
    let MemoryPlanError::DoesNotFit { needed: all, short, remedies, .. } = needed(1 << 10) else { panic!() };
    assert_eq!(short, all - (1 << 10));
    assert!(remedies.0.is_empty(), "{remedies}");
    // Twenty tokens a step less make up for half of what forty take.
    let of_token = 128 * 4 + 128 * 2 + 256 * 2 + 128 * 2 + 192 * 2;
    let error = needed(all - 20 * of_token).to_string();
    assert!(error.contains("tokens a step instead of 48"), "{error}");
    device.driver.set_memory(all);
    let error = load(&device, &by_default).unwrap_err();
    assert!(matches!(error, CudaLoadError::Plan(CudaPlanError::KvMemory { wanted: 256, .. })), "{error}");
    assert_eq!(device.driver.live_allocations(), 0);
}

/// Models by name, architecture, and shape as [`published`] takes it.
pub(super) const PUBLISHED: [(&str, Architecture, [usize; 6]); 9] = [
    ("Qwen2.5-0.5B", Architecture::Qwen2, [896, 4864, 14, 2, 64, 151_936]),
    ("Qwen2.5-1.5B", Architecture::Qwen2, [1536, 8960, 12, 2, 128, 151_936]),
    ("Qwen2.5-7B", Architecture::Qwen2, [3584, 18_944, 28, 4, 128, 152_064]),
    ("Qwen3-0.6B", Architecture::Qwen3, [1024, 3072, 16, 8, 128, 151_936]),
    ("Qwen3-4B", Architecture::Qwen3, [2560, 9728, 32, 8, 128, 151_936]),
    ("Llama-3.2-1B", Architecture::Llama, [2048, 8192, 32, 8, 64, 128_256]),
    ("Llama-3.1-8B", Architecture::Llama, [4096, 14_336, 32, 8, 128, 128_256]),
    ("Mistral-7B", Architecture::Mistral, [4096, 14_336, 32, 8, 128, 32_768]),
    ("SmolLM2-135M", Architecture::Llama, [576, 1536, 9, 3, 64, 49_152]),
];

/// A model of two layers: hidden size, feed-forward, query heads, KV heads, head_dim, vocabulary.
pub(super) fn published(architecture: Architecture, shape: [usize; 6]) -> crate::model::ModelConfig {
    let [hidden, inner, heads, kv_heads, head_dim, vocab] = shape;
    let config = json!({
        "architectures": [architecture.json_name()], "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": head_dim, "vocab_size": vocab, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-6,
        "hidden_act": "silu", "rope_theta": 1e6, "tie_word_embeddings": true, "sliding_window": null
    });
    crate::model::ModelConfig::from_json(&config.to_string()).unwrap()
}

#[test]
fn every_dense_decoder_family_is_covered_at_its_published_shapes() {
    let registry = Registry::embedded(Target::hopper()).unwrap();
    for (name, architecture, shape) in PUBLISHED {
        let config = published(architecture, shape);
        let covered = check_coverage(&config, &registry, &CudaOptions::default());
        assert!(covered.is_ok(), "{name}: {}", covered.unwrap_err());
    }
}

#[test]
fn two_steps_are_in_flight_and_a_third_is_refused() {
    let device = device();
    let mut executor = load(&device, &OPTIONS).unwrap();
    let batch = crate::EngineBatch::default();
    assert_eq!(executor.limits().steps_in_flight, 2);
    executor.submit(&batch).unwrap();
    executor.submit(&batch).unwrap();
    assert!(executor.submit(&batch).unwrap_err().message.contains("2 steps are in flight"));
    let mut output = Default::default();
    executor.collect(&mut output).unwrap();
    executor.collect(&mut output).unwrap();
    assert!(executor.collect(&mut output).is_err());
}

/// A decode step of a sequence that starts in it.
fn decode_step(slot: u32, kv_len: usize, pages: &[u32]) -> EngineBatch {
    let slot = SlotId(slot);
    EngineBatch {
        slot_starts: vec![SlotStart {
            slot,
            choice: ChoiceIndex(0),
            sampling: Arc::new(greedy()),
            prompt: vec![TokenId(3); kv_len].into(),
            output: Vec::new(),
        }],
        rows: vec![BatchRow {
            slot,
            tokens: 0..1,
            pages: 0..pages.len(),
            kv_len,
            input: RowInput::Host,
            samples: 0..1,
            prompt_logprobs: None,
            hidden_states: HiddenStates::None,
        }],
        tokens: vec![TokenId(3)],
        positions: vec![kv_len as u32 - 1],
        pages: pages.iter().copied().map(PageId).collect(),
        samples: vec![SampleTarget {
            slot,
            position: kv_len as u32,
            logprobs: None,
            mask: None,
            forbidden: Arc::from([]),
        }],
        ..EngineBatch::default()
    }
}

/// Where in a list something holds.
fn places(ran: &[Ran], holds: impl Fn(&Ran) -> bool) -> Vec<usize> {
    ran.iter().enumerate().filter(|(_, ran)| holds(ran)).map(|(at, _)| at).collect()
}

#[test]
fn tables_of_a_decode_step_come_while_the_step_before_runs_and_each_ring_keeps_its_own() {
    let device = device();
    let mut executor = load(&device, &OPTIONS).unwrap();
    let kv_len = |executor: &CudaExecutor, turn: usize| {
        let word = executor.bodies.decode[0][turn].body.layout.kv_len.start;
        executor.rings.rings[turn].tables.read(word)
    };
    let ranges = |span: Span<'_>| span.ptr().0..span.ptr().0 + span.bytes() as u64;
    let tables = [0, 1].map(|turn| ranges(executor.buffers.step_tables(turn).unwrap().span()));
    let drawn = [0, 1].map(|turn| ranges(executor.rings.rings[turn].drawn.region().unwrap().span()));
    device.driver.hold();
    device.driver.watch();
    executor.submit(&decode_step(0, 5, &[0])).unwrap();
    executor.submit(&decode_step(1, 70, &[1, 2])).unwrap();
    assert_eq!([0, 1].map(|turn| kv_len(&executor, turn)), [Some(5), Some(70)]);
    device.driver.release();
    let mut output = Default::default();
    executor.collect(&mut output).unwrap();
    // The first ring is free again, and what the second has is not touched.
    device.driver.hold();
    executor.submit(&decode_step(0, 9, &[0])).unwrap();
    assert_eq!([0, 1].map(|turn| kv_len(&executor, turn)), [Some(9), Some(70)]);
    device.driver.release();
    executor.collect(&mut output).unwrap();
    executor.collect(&mut output).unwrap();

    let ran = device.driver.watched();
    let copied = |ran: &Ran, range: &Range<u64>| matches!(ran, Ran::Copy { to, .. } if range.contains(to));
    let launched = |ran: &Ran, range: &Range<u64>| matches!(ran, Ran::Launch { touches } if touches.iter().any(|to| range.contains(to)));
    let [first, second] = tables.each_ref().map(|range| places(&ran, |ran| copied(ran, range)));
    assert_eq!((first.len(), second.len()), (2, 1), "{first:?} {second:?}");
    let [of_first, of_second] = tables.each_ref().map(|range| places(&ran, |ran| launched(ran, range)));
    let [draws, later_draws] = drawn.each_ref().map(|range| places(&ran, |ran| launched(ran, range)));
    let before_third: Vec<_> = of_first.iter().copied().filter(|&at| at < of_second[0]).collect();
    // Every step has its tables before it begins, and the second's are there before the first step's last kernel.
    assert!(first[0] < before_third[0] && second[0] < of_second[0]);
    assert!(second[0] < *before_third.last().unwrap(), "{second:?} {before_third:?}");
    // The third step's tables come when the first has ended, and its kernels after the second's.
    assert!(first[1] > *before_third.last().unwrap());
    let third = &of_first[before_third.len()..];
    assert!(!third.is_empty() && third[0] > *of_second.last().unwrap() && third[0] > first[1]);
    // Each draws into pinned memory of its own.
    assert_eq!((draws.len(), later_draws.len()), (2, 1));
    assert!(draws[0] < later_draws[0] && later_draws[0] < draws[1]);
    assert_eq!(device.driver.violations(), Vec::<String>::new());
}

#[test]
fn a_decode_step_of_one_row_has_five_operators_a_layer_and_in_others_norms_between_products_are_spread() {
    let executor = load(&device(), &OPTIONS).unwrap();
    let lens: Vec<_> = executor.bodies.decode.iter().map(|[step, _]| step.body.operators.len()).collect();
    let layers = executor.num_pools / 2;
    // The embedding and the layers.
    assert_eq!(lens[0], 1 + 5 * layers);
    let heads: Vec<_> = executor.bodies.decode.iter().map(|[step, _]| step.logits.len()).collect();
    assert!(heads[0] == 1 && heads[1..].iter().all(|&len| len == 2), "{heads:?}");
    // Of eight a layer those are gone that normalize or append.
    let gone = 3 * layers;
    assert!(lens[1..].iter().all(|&len| len == 1 + 8 * layers - gone), "{lens:?}");
}

#[test]
fn kernels_come_from_a_folder_if_one_is_given() {
    let device = device();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../oxide-infer-cuda/artifacts/sm_90a");
    let from = |folder: &Path| {
        load(&device, &CudaOptions { artifacts: ArtifactSource::Directory(folder.into()), ..OPTIONS })
    };
    assert_eq!(from(&folder).unwrap().plan_size(), load(&device, &OPTIONS).unwrap().plan_size());
    let nowhere = from(&folder.join("nowhere")).unwrap_err();
    assert!(matches!(nowhere, CudaLoadError::Registry(_)), "{nowhere}");
    assert!(nowhere.to_string().contains("nowhere"), "{nowhere}");
}

#[test]
fn a_decode_step_of_a_few_rows_has_no_norms_between_products_that_share_them() {
    let device = device();
    let changes =
        json!({"hidden_size": 768, "intermediate_size": 512, "num_attention_heads": 8, "head_dim": 64});
    let (_dir, source) = source(Architecture::Llama, changes);
    let executor = load_cuda_on(&device.context, &source, &OPTIONS, &mut |_| ()).unwrap();
    let lens: Vec<_> = executor.bodies.decode.iter().map(|[step, _]| step.body.operators.len()).collect();
    let layers = executor.num_pools / 2;
    assert_eq!(lens, [1 + 5 * layers; 4]);
    let engine = Engine::start(Box::new(executor), EngineConfig::default()).unwrap();
    let choices = EngineRequest { choices: NonZeroU32::new(3).unwrap(), ..request(65, 3, greedy()) };
    assert_eq!(answer(&engine, choices), (9, None));
    let counters = engine.operators();
    let launched = |part: &str| {
        counters.snapshot().filter(|(name, _)| name.starts_with(part)).map(|(_, count)| count).sum::<u64>()
    };
    let (steps, layers) = (2, layers as u64);
    assert_eq!(launched("weighted"), steps * (2 * layers - 1));
    assert_eq!(launched("scaled_swiglu"), steps * layers);
    assert_eq!(launched("scaled_projected"), steps * layers);
    assert_eq!(launched("gather_weighted"), steps);
    assert_eq!(device.driver.violations(), Vec::<String>::new());
}

/// How often kernels whose names begin with each of these were launched.
fn launched<const N: usize>(engine: &EngineHandle, parts: [&str; N]) -> [u64; N] {
    let counters = engine.operators();
    parts.map(|part| {
        counters.snapshot().filter(|(name, _)| name.starts_with(part)).map(|(_, count)| count).sum()
    })
}

/// The same for 17 rows of three tokens each.
fn launched_for_17_rows(executor: CudaExecutor, sampling: SamplingParams, parts: [&str; 4]) -> [u64; 4] {
    let engine = Engine::start(Box::new(executor), EngineConfig::default()).unwrap();
    let choices = EngineRequest { choices: NonZeroU32::new(17).unwrap(), ..request(5, 3, sampling) };
    assert_eq!(answer(&engine, choices), (51, None));
    launched(&engine, parts)
}

#[test]
fn what_follows_the_last_attention_of_a_prompt_is_computed_for_rows_whose_logits_are_needed_alone() {
    let device = device();
    for goal in [PlanGoal::Fastest, PlanGoal::Deterministic] {
        let executor = load(&device, &CudaOptions { goal, ..OPTIONS }).unwrap();
        let layers = executor.num_pools / 2;
        // The embedding and the layers, without the output projection, the norm and both products of the last.
        let bodies: Vec<_> =
            executor.bodies.mixed.iter().flatten().map(|body| body.operators.len()).collect();
        assert!(bodies.iter().all(|&len| len == 1 + 8 * layers - 4), "{bodies:?}");
        // Those, over picked rows of the residual stream and of the attention.
        let heads: Vec<_> = executor.heads.iter().map(|head| (head.picked.len(), head.last.len())).collect();
        assert!(heads.iter().all(|&lens| lens == (1, 2 + 4)), "{heads:?}");

        let engine = Engine::start(Box::new(executor), EngineConfig::default()).unwrap();
        // Three steps of at most 48 tokens, of which the last draws, and two steps of one row.
        assert_eq!(answer(&engine, request(100, 3, greedy())), (3, None));
        let picks = ["gather.bf16.threads", "gather.f32.threads"];
        assert_eq!(launched(&engine, picks), [1, 1]);
        assert_eq!(launched(&engine, ["paged_prefill."]), [3 * layers as u64]);
        // Every step has rows whose logits are asked for now: 48, 48 and 4, in chunks of at most 6; the last draws as well.
        let asked = EngineRequest { prompt_logprobs: Some(1), ..request(100, 1, greedy()) };
        assert_eq!(answer(&engine, asked), (1, None));
        let chunks = 8 + 8 + 1 + 1;
        assert_eq!(launched(&engine, picks), [1 + chunks, 1 + chunks]);
    }
    assert_eq!(device.driver.violations(), Vec::<String>::new());
}

#[test]
fn greedy_rows_of_sixteen_or_more_are_chosen_by_tiles_and_others_from_logits() {
    let device = device();
    for goal in [PlanGoal::Fastest, PlanGoal::Deterministic] {
        let options = CudaOptions { max_sequences: 17, goal, ..OPTIONS };
        let executor = || load(&device, &options).unwrap();
        let by_tiles: Vec<_> =
            executor().bodies.decode.iter().map(|[step, _]| step.candidates.is_some()).collect();
        assert_eq!(by_tiles, [false, false, false, false, true, true]);
        let parts = ["candidates.", "pick.", "argmax.", "sample."];
        // The first tokens are drawn from logits of the prompt.
        assert_eq!(launched_for_17_rows(executor(), greedy(), parts), [2, 2, 1, 0]);
        let drawn = SamplingParams { seed: 3, ..Default::default() };
        assert_eq!(launched_for_17_rows(executor(), drawn, parts), [0, 0, 0, 3]);
        // Logits that are shown must be there.
        let mut kept = executor();
        kept.keep_logits();
        assert_eq!(launched_for_17_rows(kept, greedy(), parts), [0, 0, 3, 0]);
    }
    assert_eq!(device.driver.violations(), Vec::<String>::new());
}

#[test]
fn one_sequence_is_attended_to_in_one_launch_until_it_is_long() {
    let device = device();
    let (_dir, source) = source(Architecture::Llama, json!({"max_position_embeddings": 8192}));
    let options = CudaOptions { max_model_len: Some(8192), kv_memory: Some(32 << 20), ..OPTIONS };
    let executor = load_cuda_on(&device.context, &source, &options, &mut |_| ()).unwrap();
    let layers = executor.num_pools as u64 / 2;
    let engine = Engine::start(Box::new(executor), EngineConfig::default()).unwrap();
    // The first token is the prompt's; the steps of the nine others have 4,091 to 4,099 tokens each.
    assert_eq!(answer(&engine, request(4090, 10, greedy())).0, 10);
    let counters = engine.operators();
    let launched = |part: &str| {
        let decodes = counters.snapshot().filter(|(name, _)| name.contains("paged_decode"));
        decodes.filter(|(name, _)| name.contains(part)).map(|(_, count)| count).sum::<u64>()
    };
    assert_eq!((launched("cluster_8"), launched("split")), (6 * layers, 3 * layers));
}

#[test]
fn a_deterministic_plan_has_the_same_operators_in_all_decode_classes_and_keeps_kinds_of_tokens_apart() {
    let device = device();
    let options = CudaOptions { goal: PlanGoal::Deterministic, kv_memory: Some(1 << 18), ..OPTIONS };
    let executor = load(&device, &options).unwrap();
    let lens: Vec<_> = executor.bodies.decode.iter().map(|[step, _]| step.body.operators.len()).collect();
    let layers = executor.num_pools / 2;
    // Norms are spread over the operators around them, but the head's.
    assert!(lens.iter().all(|&len| len == 1 + 5 * layers), "{lens:?}");
    let engine = Engine::start(Box::new(executor), EngineConfig::default()).unwrap();
    // Pages for two: some are preempted, and what they had generated is computed again without a draw.
    let streams: Vec<_> = (0..6).map(|_| engine.submit(request(70, 120, greedy())).unwrap()).collect();
    for mut stream in streams {
        let mut tokens = 0;
        while let Some(event) = stream.blocking_next() {
            assert!(!matches!(event, EngineEvent::Failed(_)), "{event:?}");
            tokens += usize::from(matches!(event, EngineEvent::Token { .. }));
        }
        assert_eq!(tokens, 120);
    }
    assert!(engine.metrics().snapshot().preemptions > 0);
    assert_eq!(device.driver.violations(), Vec::<String>::new());
    let counters = engine.operators();
    let attention: Vec<_> =
        counters.snapshot().filter(|(name, count)| name.contains("decode") && *count > 0).collect();
    assert_eq!(attention.len(), 1, "{attention:?}");
}

#[test]
fn a_deterministic_executor_refuses_steps_that_are_neither_prompts_nor_generated_tokens() {
    let mut executor = load(&device(), &CudaOptions { goal: PlanGoal::Deterministic, ..OPTIONS }).unwrap();
    let row = |tokens: std::ops::Range<usize>| BatchRow {
        slot: SlotId(0),
        kv_len: tokens.len(),
        tokens,
        pages: 0..1,
        input: RowInput::Host,
        samples: 0..0,
        prompt_logprobs: None,
        hidden_states: HiddenStates::None,
    };
    let batch = |kind, tokens: usize| EngineBatch {
        kind,
        rows: vec![row(0..tokens)],
        tokens: vec![TokenId(3); tokens],
        positions: (0..tokens as u32).collect(),
        pages: vec![PageId(0)],
        ..EngineBatch::default()
    };
    let refused = |error: crate::ExecutorError| assert!(error.message.contains("that is none"), "{error}");
    refused(executor.submit(&batch(StepKind::Mixed, 1)).unwrap_err());
    refused(executor.submit(&batch(StepKind::Generated, 2)).unwrap_err());
    executor.submit(&batch(StepKind::Generated, 1)).unwrap();
    executor.submit(&batch(StepKind::Prompt, 2)).unwrap();
}

#[test]
fn more_sequences_than_a_class_of_decodes_has_rows_are_refused_where_the_plan_is_deterministic() {
    let options =
        CudaOptions { max_sequences: 257, max_batch_tokens: 300, goal: PlanGoal::Deterministic, ..OPTIONS };
    let error = load(&device(), &options).unwrap_err().to_string();
    assert_eq!(error, "max_sequences is 257; it must be from 1 to 256");
}
