//! Metrics in Prometheus' text formats: vLLM's set, with its meanings and buckets, under a prefix of choice.

mod engine;
mod exposition;
mod http;
mod request;

pub(crate) use exposition::Format;
pub(crate) use http::HttpMetrics;
pub(crate) use request::{FinishedChoice, RequestMetrics};

use oxide_infer_engine::EngineHandle;
use prometheus_client::registry::Registry;
use std::borrow::Cow;

/// All metrics of one server.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    /// What the server measures of every request.
    pub(crate) requests: RequestMetrics,
    /// What it measures of HTTP.
    pub(crate) http: HttpMetrics,
}

impl Metrics {
    /// Registers everything under `prefix`, with the model's name as a label.
    pub(crate) fn new(prefix: &str, model_name: &str, engine: &EngineHandle) -> Self {
        let mut registry = Registry::default();
        let http = HttpMetrics::register(&mut registry);
        let labels = [("model_name", model_name), ("engine", "0")];
        let labels = labels.map(|(name, value)| (Cow::from(name), Cow::from(value.to_owned())));
        let labelled = registry.sub_registry_with_labels(labels.into_iter());
        let requests = RequestMetrics::register(labelled, prefix, engine.limits().max_model_len);
        labelled.register_collector(Box::new(engine::EngineCollector::new(prefix, engine)));
        Self { registry, requests, http }
    }

    /// The metrics as text.
    pub(crate) fn encode(&self, format: Format) -> Result<String, std::fmt::Error> {
        exposition::encode(&self.registry, format)
    }
}
