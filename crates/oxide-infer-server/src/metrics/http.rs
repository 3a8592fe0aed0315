//! Counts of HTTP itself, under the names that FastAPI's instrumentation (which vLLM uses) gives them.

use axum::http::{Method, StatusCode};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;

/// Counts of HTTP requests.
#[derive(Debug)]
pub(crate) struct HttpMetrics {
    requests: Family<RequestLabels, Counter>,
    durations: Family<RouteLabels, Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: String,
    status: String,
    handler: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    method: String,
    handler: String,
}

impl HttpMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let requests = Family::default();
        registry.register(
            "http_requests",
            "Total number of requests by method, status and handler",
            requests.clone(),
        );
        let durations =
            Family::new_with_constructor((|| Histogram::new([0.1, 0.5, 1.0])) as fn() -> Histogram);
        registry.register(
            "http_request_duration_seconds",
            "Time until the response's head by method and handler",
            durations.clone(),
        );
        Self { requests, durations }
    }

    /// Notes a response. `handler` is the route's pattern, or `none`: what clients choose freely is no label.
    pub(crate) fn observe(&self, method: &Method, handler: &str, status: StatusCode, took: Duration) {
        let method = known_method(method).to_owned();
        let handler = handler.to_owned();
        let class = format!("{}xx", status.as_u16() / 100);
        let labels = RequestLabels { method: method.clone(), status: class, handler: handler.clone() };
        self.requests.get_or_create(&labels).inc();
        self.durations.get_or_create(&RouteLabels { method, handler }).observe(took.as_secs_f64());
    }
}

fn known_method(method: &Method) -> &str {
    match method.as_str() {
        known @ ("GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "OPTIONS" | "PATCH") => known,
        _ => "other",
    }
}
