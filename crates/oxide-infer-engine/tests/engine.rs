//! The engine thread over the scripted executor: what a client sees.

use oxide_infer::TokenId;
use oxide_infer::sampling::{SamplingParams, TokenMask};
use oxide_infer_engine::request::{ChoiceIndex, MaskError, Masking, Pooling, RequestError, StopConditions};
use oxide_infer_engine::testing::scripted::{
    SMALL_LIMITS, ScriptedExecutor, expected_answer, expected_pooled,
};
use oxide_infer_engine::{
    DrainOutcome, Engine, EngineConfig, EngineEvent, EngineHandle, EngineRequest, EventStream,
    ExecutorLimits, FinishReason, Health, MetricsSnapshot, RequestId, SubmitError,
};
use std::num::NonZeroU32;
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

const OVERLAPPED: ExecutorLimits = ExecutorLimits { steps_in_flight: 2, ..SMALL_LIMITS };

fn start(executor: ScriptedExecutor) -> EngineHandle {
    Engine::start(Box::new(executor), EngineConfig::default()).unwrap()
}

fn request(prompt: &[u32], max_tokens: u32) -> EngineRequest {
    EngineRequest {
        prompt: prompt.iter().copied().map(TokenId).collect(),
        choices: NonZeroU32::MIN,
        sampling: Arc::new(SamplingParams { temperature: 0.0, ..Default::default() }),
        stop: StopConditions { max_tokens, ..Default::default() },
        logprobs: None,
        prompt_logprobs: None,
        masking: Masking::None,
        pooling: None,
    }
}

/// Reads a stream to its end: every choice's tokens and reason, or the failure.
fn answers(
    mut stream: EventStream,
    choices: usize,
) -> Result<Vec<(Vec<TokenId>, FinishReason)>, RequestError> {
    let mut tokens = vec![Vec::new(); choices];
    let mut reasons = vec![None; choices];
    while let Some(event) = stream.blocking_next() {
        match event {
            EngineEvent::PromptDone { .. } => assert!(tokens.iter().all(Vec::is_empty)),
            EngineEvent::Token { choice, token, .. } => tokens[choice.0 as usize].push(token),
            EngineEvent::Finished { choice, reason, .. } => {
                assert_eq!(reasons[choice.0 as usize].replace(reason), None);
            }
            EngineEvent::Failed(error) => return Err(error),
        }
    }
    Ok(tokens.into_iter().zip(reasons.into_iter().map(Option::unwrap)).collect())
}

#[test]
fn a_request_gets_its_tokens_and_one_finish_per_choice() {
    for limits in [SMALL_LIMITS, OVERLAPPED] {
        let engine = start(ScriptedExecutor::new(limits));
        let mut request = request(&[5, 6, 7, 8, 9], 10);
        request.choices = NonZeroU32::new(3).unwrap();
        request.sampling = Arc::new(SamplingParams { seed: 7, ..Default::default() });
        let got = answers(engine.submit(request.clone()).unwrap(), 3).unwrap();
        for (choice, (tokens, reason)) in got.into_iter().enumerate() {
            let expected = expected_answer(&request, ChoiceIndex(choice as u32), &limits, |_| None);
            assert_eq!(tokens, expected);
            assert_eq!(reason, FinishReason::Length);
        }
    }
}

#[test]
fn a_failed_step_fails_every_request_and_the_health() {
    for limits in [SMALL_LIMITS, OVERLAPPED] {
        let engine = start(
            ScriptedExecutor::new(limits)
                .failing_at(3, "the device fell over")
                .step_time(Duration::from_millis(5)),
        );
        let streams: Vec<_> =
            (0..4).map(|first| engine.submit(request(&[first, 1, 2], 50)).unwrap()).collect();
        for stream in streams {
            assert_eq!(answers(stream, 1), Err(RequestError::Executor("the device fell over".into())));
        }
        assert_eq!(engine.health(), Health::Failed("the device fell over".into()));
        assert_eq!(
            engine.submit(request(&[1], 1)).unwrap_err(),
            SubmitError::Failed("the device fell over".into())
        );
        assert_eq!(engine.metrics().snapshot().finished_failed, 4);
    }
}

#[test]
fn a_panic_in_the_engine_thread_fails_every_request_and_the_health() {
    let engine = start(ScriptedExecutor::new(OVERLAPPED).on_collect(|step| assert!(step < 2, "a bug")));
    let stream = engine.submit(request(&[1, 2], 50)).unwrap();
    let error = answers(stream, 1).unwrap_err();
    assert!(error.to_string().contains("the engine thread panicked: a bug"), "{error}");
    assert!(matches!(engine.health(), Health::Failed(_)));
}

#[tokio::test]
async fn a_drain_lets_requests_end_and_takes_no_new_ones() {
    let engine = start(ScriptedExecutor::new(OVERLAPPED).step_time(Duration::from_millis(1)));
    let stream = engine.submit(request(&[1, 2], 20)).unwrap();
    engine.begin_drain();
    assert_eq!(engine.submit(request(&[1], 1)).unwrap_err(), SubmitError::ShuttingDown);
    assert_eq!(engine.drain(Duration::from_secs(20)).await, DrainOutcome::Complete);
    assert_eq!(engine.health(), Health::Stopped);
    let got = tokio::task::spawn_blocking(move || answers(stream, 1)).await.unwrap().unwrap();
    assert_eq!(got[0].0.len(), 20);
}

#[tokio::test]
async fn a_drain_that_takes_too_long_fails_what_is_left() {
    let engine = start(ScriptedExecutor::new(OVERLAPPED).step_time(Duration::from_millis(20)));
    let mut stream = engine.submit(request(&[1, 2], 100)).unwrap();
    assert_eq!(engine.drain(Duration::from_millis(60)).await, DrainOutcome::CutShort);
    let mut last = None;
    while let Some(event) = stream.next().await {
        last = Some(event);
    }
    assert!(matches!(last, Some(EngineEvent::Failed(RequestError::ShutDown))), "{last:?}");
}

/// An executor that collects a step only when told to, and its lever.
fn gated(limits: ExecutorLimits) -> (ScriptedExecutor, mpsc::Sender<()>) {
    let (lever, gate) = mpsc::channel();
    // Once the lever is dropped the steps run freely.
    (ScriptedExecutor::new(limits).on_collect(move |_| _ = gate.recv()), lever)
}

/// Waits until the engine's counters are as expected.
fn wait_for(engine: &EngineHandle, expected: impl Fn(&MetricsSnapshot) -> bool) {
    let started = Instant::now();
    while !expected(&engine.metrics().snapshot()) {
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", engine.metrics().snapshot());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn dropping_a_stream_frees_its_pages_within_one_step() {
    for limits in [SMALL_LIMITS, OVERLAPPED] {
        let (executor, lever) = gated(limits);
        let engine = start(executor);
        let mut stream = engine.submit(request(&[1, 2, 3], 100)).unwrap();
        (0..3).for_each(|_| lever.send(()).unwrap());
        while !matches!(stream.blocking_next(), Some(EngineEvent::Token { .. })) {}
        drop(stream);
        // At most one collection stands between the engine and its commands.
        lever.send(()).unwrap();
        wait_for(&engine, |metrics| metrics.finished_cancelled == 1 && metrics.kv_pages_used == 0);
        assert_eq!(engine.metrics().snapshot().running, 0);
    }
}

#[test]
fn a_full_queue_refuses_with_the_time_to_come_back() {
    let (executor, lever) = gated(ExecutorLimits { max_sequences: 1, ..SMALL_LIMITS });
    let config = EngineConfig { max_waiting: 2, ..EngineConfig::default() };
    let engine = Engine::start(Box::new(executor), config).unwrap();
    let running = engine.submit(request(&[1], 3)).unwrap();
    wait_for(&engine, |metrics| metrics.running == 1);
    let waiting: Vec<_> = (0..2).map(|_| engine.submit(request(&[2], 3)).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(20));
    match engine.submit(request(&[3], 3)) {
        Err(SubmitError::QueueFull { waiting: 2, limit: 2, retry_after }) => {
            assert!(retry_after >= Duration::from_millis(20) && retry_after < Duration::from_secs(20));
        }
        other => panic!("{other:?}"),
    }
    drop(lever);
    for stream in waiting.into_iter().chain([running]) {
        assert_eq!(answers(stream, 1).unwrap()[0].0.len(), 3);
    }
    answers(engine.submit(request(&[3], 3)).unwrap(), 1).unwrap();
}

#[test]
fn a_waiting_request_whose_client_leaves_gives_its_place_back() {
    let (executor, _lever) = gated(ExecutorLimits { max_sequences: 1, steps_in_flight: 2, ..SMALL_LIMITS });
    let config = EngineConfig { max_waiting: 1, ..EngineConfig::default() };
    let engine = Engine::start(Box::new(executor), config).unwrap();
    let masked = EngineRequest { masking: Masking::PerToken, ..request(&[1], 3) };
    let _running = engine.submit(masked).unwrap();
    wait_for(&engine, |metrics| metrics.running == 1);
    drop(engine.submit(request(&[2], 3)).unwrap());
    wait_for(&engine, |metrics| metrics.finished_cancelled == 1);
    assert!(engine.submit(request(&[2], 3)).is_ok());
}

#[test]
fn a_client_that_does_not_read_holds_nobody_up() {
    let engine = start(ScriptedExecutor::new(OVERLAPPED));
    let unread = engine.submit(request(&[1, 2], 100)).unwrap();
    for first in 0..20 {
        assert_eq!(answers(engine.submit(request(&[first, 7], 50)).unwrap(), 1).unwrap()[0].0.len(), 50);
    }
    assert_eq!(answers(unread, 1).unwrap()[0].0.len(), 100);
}

#[test]
fn requests_from_many_threads_all_get_their_own_answers() {
    let engine = start(ScriptedExecutor::new(OVERLAPPED));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let engine = engine.clone();
            scope.spawn(move || {
                for round in 0..10 {
                    let request = request(&[thread, round, 5, 6, 7], 12);
                    let expected = expected_answer(&request, ChoiceIndex(0), &OVERLAPPED, |_| None);
                    assert_eq!(answers(engine.submit(request).unwrap(), 1).unwrap()[0].0, expected);
                }
            });
        }
    });
    let metrics = engine.metrics().snapshot();
    assert_eq!((metrics.finished_length, metrics.generation_tokens, metrics.prompt_tokens), (80, 960, 400));
    assert_eq!(metrics.kv_pages_total, OVERLAPPED.num_pages as u64);
    let computed = metrics.iteration_tokens.sum + metrics.prefix_cache_hits;
    assert!(computed >= 400 + 80 * 11, "{metrics:?}");
}

/// Limits for 256 sequences at once.
const MANY: ExecutorLimits =
    ExecutorLimits { num_pages: 4096, max_sequences: 256, max_batch_tokens: 512, ..OVERLAPPED };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_of_256_streams_ends_whether_they_are_read_dropped_or_left_alone() {
    let engine = start(ScriptedExecutor::new(MANY).step_time(Duration::from_millis(1)));
    let request = |index: u32| request(&[index, 7, 8], 20 + index % 30);
    let streams: Vec<_> = (0..256).map(|index| engine.submit(request(index)).unwrap()).collect();
    let (mut readers, mut unread) = (Vec::new(), Vec::new());
    for (index, mut stream) in (0..).zip(streams) {
        match index % 3 {
            // Reads to the end.
            0 => readers.push(tokio::spawn(async move {
                let mut tokens = Vec::new();
                while let Some(event) = stream.next().await {
                    if let EngineEvent::Token { token, .. } = event {
                        tokens.push(token);
                    }
                }
                assert_eq!(tokens, expected_answer(&request(index), ChoiceIndex(0), &MANY, |_| None));
            })),
            // Reads a little, waits for more, and goes.
            1 => readers.push(tokio::spawn(async move {
                for _ in 0..index % 10 {
                    stream.next().await.unwrap();
                }
                let _ = tokio::time::timeout(Duration::from_micros(500), stream.next()).await;
            })),
            _ => unread.push((index, stream)),
        }
    }
    assert_eq!(engine.drain(Duration::from_secs(60)).await, DrainOutcome::Complete);
    for reader in readers {
        tokio::time::timeout(Duration::from_secs(20), reader).await.unwrap().unwrap();
    }
    let unread = tokio::task::spawn_blocking(move || {
        for (index, stream) in unread {
            let got = answers(stream, 1).unwrap();
            assert_eq!(got[0].0, expected_answer(&request(index), ChoiceIndex(0), &MANY, |_| None));
        }
    });
    tokio::time::timeout(Duration::from_secs(20), unread).await.unwrap().unwrap();
    let metrics = engine.metrics().snapshot();
    assert_eq!((metrics.running, metrics.waiting, metrics.kv_pages_used), (0, 0, 0));
    assert_eq!(metrics.finished_length + metrics.finished_cancelled, 256);
}

#[test]
fn a_reader_whose_waker_panics_ends_the_engine_and_every_stream() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a reader's bug");
        }
    }
    let engine = start(ScriptedExecutor::new(OVERLAPPED).step_time(Duration::from_millis(2)));
    let mut other = engine.submit(request(&[1], 100)).unwrap();
    let mut stream = engine.submit(request(&[2], 100)).unwrap();
    let waker = Waker::from(Arc::new(Panics));
    while stream.poll_next(&mut Context::from_waker(&waker)).is_ready() {}
    let last = std::iter::from_fn(|| other.blocking_next()).last();
    assert!(matches!(last, Some(EngineEvent::Failed(_))), "{last:?}");
    let started = Instant::now();
    while engine.health() == Health::Running {
        assert!(started.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(engine.health(), Health::Failed("delivering events panicked: a reader's bug".into()));
}

#[test]
fn masks_come_through_the_handle_one_token_at_a_time() {
    let engine = start(ScriptedExecutor::new(OVERLAPPED));
    let masked = EngineRequest { masking: Masking::PerToken, ..request(&[1, 2, 3], 4) };
    let mut stream = engine.submit(masked).unwrap();
    let only = |token: u32| {
        let mut mask = TokenMask::none(OVERLAPPED.vocab_size);
        mask.allow(TokenId(token));
        Arc::new(mask)
    };
    let mut tokens = Vec::new();
    engine.supply_mask(stream.id(), ChoiceIndex(0), 0, only(40)).unwrap();
    while let Some(event) = stream.blocking_next() {
        if let EngineEvent::Token { choice, token, .. } = event {
            tokens.push(token);
            let index = tokens.len() as u32;
            engine.supply_mask(stream.id(), choice, index, only(40 + index)).unwrap();
        }
    }
    assert_eq!(tokens, [40, 41, 42, 43].map(TokenId));
}

#[test]
fn a_mask_that_cannot_be_used_is_refused_by_name() {
    let engine = start(ScriptedExecutor::new(SMALL_LIMITS));
    let supply = |mask| engine.supply_mask(RequestId(0), ChoiceIndex(0), 0, Arc::new(mask));
    assert_eq!(supply(TokenMask::all(999)), Err(MaskError::VocabSize { got: 999, expected: 1000 }));
    assert_eq!(supply(TokenMask::none(1000)), Err(MaskError::Empty));
    assert_eq!(supply(TokenMask::all(1000)), Ok(()));
}

#[test]
fn a_choice_that_the_host_ends_gets_its_finish() {
    let engine = start(ScriptedExecutor::new(OVERLAPPED).step_time(Duration::from_millis(2)));
    let request = EngineRequest { choices: NonZeroU32::new(2).unwrap(), ..request(&[1, 2], 120) };
    let mut stream = engine.submit(request).unwrap();
    while !matches!(stream.blocking_next(), Some(EngineEvent::Token { choice: ChoiceIndex(1), .. })) {}
    stream.end_choice(ChoiceIndex(1));
    let mut reasons = Vec::new();
    while let Some(event) = stream.blocking_next() {
        if let EngineEvent::Finished { choice, reason, .. } = event {
            reasons.push((choice, reason));
        }
    }
    assert_eq!(reasons, [(ChoiceIndex(1), FinishReason::Host), (ChoiceIndex(0), FinishReason::Length)]);
}

#[test]
fn the_engine_ends_with_its_last_handle_and_stream() {
    let (alive, gone) = mpsc::channel::<()>();
    let engine = start(ScriptedExecutor::new(SMALL_LIMITS).on_submit(move |_| _ = &alive));
    let stream = engine.submit(request(&[1], 5)).unwrap();
    drop(engine);
    assert_eq!(answers(stream, 1).unwrap()[0].0.len(), 5);
    // The executor, and with it the sender, is dropped.
    assert_eq!(gone.recv_timeout(Duration::from_secs(20)), Err(mpsc::RecvTimeoutError::Disconnected));
}

#[tokio::test]
async fn a_drain_says_when_the_executor_hangs() {
    let (executor, lever) = gated(SMALL_LIMITS);
    let engine = start(executor);
    let _stream = engine.submit(request(&[1], 5)).unwrap();
    assert_eq!(engine.drain(Duration::from_millis(50)).await, DrainOutcome::Hung);
    drop(lever);
    assert_eq!(engine.ended().await, Health::Stopped);
}

#[test]
fn a_request_that_can_never_be_finished_is_refused_by_name() {
    let limits = ExecutorLimits { num_pages: 20, max_logprobs: 32, ..SMALL_LIMITS };
    let engine = start(ScriptedExecutor::new(limits));
    let refused = |request: EngineRequest| engine.submit(request).map(|_| ()).unwrap_err();
    let long: Vec<u32> = (0..200).collect();

    assert_eq!(refused(request(&[], 1)), SubmitError::EmptyPrompt);
    let too_long = |prompt| SubmitError::TooLong { prompt, max_model_len: 128 };
    assert_eq!(refused(request(&long[..129], 0)), too_long(129));
    assert_eq!(refused(request(&long[..128], 1)), too_long(128));
    assert_eq!(
        refused(request(&[1000], 1)),
        SubmitError::UnknownToken { token: TokenId(1000), vocab_size: 1000 }
    );
    let many = EngineRequest { choices: NonZeroU32::new(9).unwrap(), ..request(&[1], 1) };
    assert_eq!(refused(many), SubmitError::TooManyChoices { choices: 9, limit: 8 });
    let listing = EngineRequest { logprobs: Some(33), ..request(&[1], 1) };
    assert_eq!(refused(listing), SubmitError::TooManyLogprobs { field: "logprobs", wanted: 33, limit: 32 });
    let of_prompt = EngineRequest { prompt_logprobs: Some(40), ..request(&[1, 2], 1) };
    assert_eq!(
        refused(of_prompt).to_string(),
        "prompt_logprobs asks for the 40 best tokens; at most 32 are listed"
    );
    let most = EngineRequest { logprobs: Some(32), ..request(&[1], 1) };
    assert!(answers(engine.submit(most).unwrap(), 1).is_ok());
    // 20 pages hold 80 tokens; the last token of an answer needs no place.
    assert_eq!(refused(request(&long[..70], 12)), SubmitError::TooManyPages { needed: 21, available: 20 });
    assert_eq!(answers(engine.submit(request(&long[..70], 11)).unwrap(), 1).unwrap()[0].0.len(), 11);
    let pooled = EngineRequest { pooling: Some(Pooling::Mean), ..request(&long[..80], 500) };
    assert!(engine.submit(pooled.clone()).is_ok(), "a pooled request has no answer that needs room");
    let without = ExecutorLimits { hidden_size: None, ..limits };
    let error = start(ScriptedExecutor::new(without)).submit(pooled).unwrap_err();
    assert_eq!(error, SubmitError::NoHiddenStates);
    let sampling = Arc::new(SamplingParams { top_p: 0.0, ..Default::default() });
    let message = refused(EngineRequest { sampling, ..request(&[1], 1) }).to_string();
    assert_eq!(message, "top_p must be in (0, 1], got 0");
}

#[test]
fn a_pooled_request_brings_one_vector_and_no_token() {
    let engine = start(ScriptedExecutor::new(ExecutorLimits { max_batch_tokens: 8, ..OVERLAPPED }));
    let prompt: Vec<u32> = (0..50).collect();
    for pooling in [Pooling::Last, Pooling::Mean] {
        let request = EngineRequest { pooling: Some(pooling), ..request(&prompt, 5) };
        let expected = expected_pooled(&request.prompt, pooling);
        let mut stream = engine.submit(request).unwrap();
        match stream.blocking_next() {
            Some(EngineEvent::PromptDone { pooled, .. }) => assert_eq!(pooled.unwrap(), expected),
            other => panic!("{other:?}"),
        }
        let end = stream.blocking_next();
        assert!(matches!(end, Some(EngineEvent::Finished { reason: FinishReason::Pooled, .. })), "{end:?}");
        assert!(stream.blocking_next().is_none());
    }
}

#[test]
fn an_executor_that_can_do_no_work_starts_no_engine() {
    let start = |limits| Engine::start(Box::new(ScriptedExecutor::new(limits)), EngineConfig::default());
    let error = start(ExecutorLimits { max_batch_tokens: 7, ..SMALL_LIMITS }).unwrap_err();
    assert_eq!(error.to_string(), "the executor's max_batch_tokens is 7; it must be at least 8");
    assert!(start(ExecutorLimits { num_pages: 0, ..SMALL_LIMITS }).is_err());
    assert!(start(ExecutorLimits { steps_in_flight: 0, ..SMALL_LIMITS }).is_err());
}
