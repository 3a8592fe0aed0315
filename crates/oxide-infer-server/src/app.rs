//! What all requests of one server share.

use crate::auth::KeyRing;
use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::generate::embedding_places;
use crate::grammar::Grammars;
use crate::marks::AnswerMarks;
use crate::metrics::Metrics;
use crate::protocol::fields::shorten;
use crate::protocol::params::Bounds;
use crate::text::TextModel;
use oxide_infer::TokenId;
use oxide_infer_engine::EngineHandle;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What all requests of one server share.
#[derive(Debug)]
pub(crate) struct App {
    config: ServerConfig,
    model_name: Arc<str>,
    engine: EngineHandle,
    text: Arc<TextModel>,
    eos_token_ids: Arc<[TokenId]>,
    grammars: Arc<Grammars>,
    answer_marks: AnswerMarks,
    keys: KeyRing,
    metrics: Metrics,
    in_flight: Arc<Semaphore>,
    large_bodies: Arc<Semaphore>,
    embedding_places: Arc<Semaphore>,
    draining: AtomicBool,
    started: u64,
    running_since: Instant,
}

/// A place among the requests in flight, given back when dropped.
#[derive(Debug)]
pub(crate) struct InFlight(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

impl App {
    /// `model_name` is the first of the configuration's names.
    pub(crate) fn new(
        config: ServerConfig,
        model_name: &str,
        engine: EngineHandle,
        text: Arc<TextModel>,
    ) -> Self {
        Self {
            metrics: Metrics::new(&config.metrics_prefix, model_name, &engine),
            keys: KeyRing::new(&config.api_keys),
            in_flight: Arc::new(Semaphore::new(config.limits.max_requests_in_flight)),
            large_bodies: Arc::new(Semaphore::new(1)),
            embedding_places: embedding_places(&engine),
            eos_token_ids: text.eos_ids().into(),
            grammars: Grammars::new(text.clone(), engine.limits().vocab_size, &config.limits),
            answer_marks: AnswerMarks::new(&text, config.tool_style, config.reasoning_style),
            model_name: model_name.into(),
            draining: AtomicBool::new(false),
            started: unix_time(),
            running_since: Instant::now(),
            config,
            engine,
            text,
        }
    }

    pub(crate) fn config(&self) -> &ServerConfig {
        &self.config
    }

    /// The model's name in responses.
    pub(crate) fn model_name(&self) -> &Arc<str> {
        &self.model_name
    }

    pub(crate) fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    pub(crate) fn text(&self) -> &TextModel {
        &self.text
    }

    pub(crate) fn eos_token_ids(&self) -> &Arc<[TokenId]> {
        &self.eos_token_ids
    }

    /// What compiles the formats that answers are held to.
    pub(crate) fn grammars(&self) -> &Arc<Grammars> {
        &self.grammars
    }

    /// How the model marks the parts of its answers.
    pub(crate) fn answer_marks(&self) -> &AnswerMarks {
        &self.answer_marks
    }

    pub(crate) fn keys(&self) -> &KeyRing {
        &self.keys
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// When the server started, in seconds since 1970.
    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    /// How long the server has been running.
    pub(crate) fn uptime(&self) -> Duration {
        self.running_since.elapsed()
    }

    /// What requests are checked against.
    pub(crate) fn bounds(&self) -> Bounds<'_> {
        let limits = self.engine.limits();
        Bounds {
            limits: &self.config.limits,
            defaults: &self.config.sampling_defaults,
            vocab_size: limits.vocab_size,
            max_model_len: limits.max_model_len,
        }
    }

    /// Checks the model that a request names; one that names none gets the one there is.
    pub(crate) fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        let names = &self.config.served_model_names;
        match asked {
            Some(model) if !names.iter().any(|name| name == model) => {
                let served = names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
                Err(ApiError::ModelNotFound { model: shorten(model), served })
            }
            _ => Ok(()),
        }
    }

    /// A place among the requests in flight.
    pub(crate) fn admit(&self) -> Result<InFlight, ApiError> {
        let permit = self.in_flight.clone().try_acquire_owned().map_err(|_| ApiError::Busy {
            reason: format!("{} requests are in flight", self.config.limits.max_requests_in_flight),
            retry_after: Duration::from_secs(1),
        })?;
        Ok(InFlight(permit))
    }

    /// The one place for work on a large body.
    pub(crate) fn large_bodies(&self) -> Arc<Semaphore> {
        self.large_bodies.clone()
    }

    /// The places of embeddings' inputs in the engine.
    pub(crate) fn embedding_places(&self) -> &Semaphore {
        &self.embedding_places
    }

    /// Refuses new requests from now on; those in flight go on.
    pub(crate) fn begin_drain(&self) {
        self.draining.store(true, Relaxed);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// Waits until no request is in flight.
    pub(crate) async fn idle(&self) {
        let all = u32::try_from(self.config.limits.max_requests_in_flight).unwrap_or(u32::MAX);
        // The semaphore is never closed; if it were, nothing could be in flight.
        let _ = self.in_flight.acquire_many(all).await;
    }
}

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
