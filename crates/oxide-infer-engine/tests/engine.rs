//! The engine thread over the scripted executor: what a client sees.

use oxide_infer::{TokenId, sampling::SamplingParams};
use oxide_infer_engine::request::{ChoiceIndex, Masking, RequestError, StopConditions};
use oxide_infer_engine::testing::scripted::{SMALL_LIMITS, ScriptedExecutor, expected_answer};
use oxide_infer_engine::{
    DrainOutcome, Engine, EngineConfig, EngineEvent, EngineHandle, EngineRequest, EventStream,
    ExecutorLimits, FinishReason, Health, SubmitError,
};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

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
