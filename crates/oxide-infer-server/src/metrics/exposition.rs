//! The two text formats that scrapers read.

use axum::http::{HeaderMap, header};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0, which Prometheus asks for.
    OpenMetrics,
    /// Prometheus' older format, which everything reads.
    Text,
}

impl Format {
    /// The one that a scraper asks for.
    pub(crate) fn negotiate(headers: &HeaderMap) -> Self {
        let accepts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut ranges = accepts.flat_map(|value| value.split(','));
        match ranges.any(|range| range.trim().starts_with("application/openmetrics-text")) {
            true => Self::OpenMetrics,
            false => Self::Text,
        }
    }

    /// Its media type.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Writes all metrics.
pub(super) fn encode(registry: &Registry, format: Format) -> Result<String, std::fmt::Error> {
    let mut open_metrics = String::new();
    text::encode(&mut open_metrics, registry)?;
    Ok(match format {
        Format::OpenMetrics => open_metrics,
        Format::Text => to_text_format(&open_metrics),
    })
}

/// OpenMetrics names a counter's family without `_total`, the older format with it; only that format's end mark is a
/// comment too many.
fn to_text_format(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len());
    let mut help: Option<(&str, &str)> = None;
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, text)) = help.take() {
                out.push_str(&format!("# HELP {name}{suffix} {text}\n"));
            }
            out.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        } else if line != "# EOF" {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;

    fn registry() -> Registry {
        let mut registry = Registry::default();
        let counter: Counter = Counter::default();
        counter.inc_by(3);
        registry.register("vllm:prompt_tokens", "Tokens", counter);
        registry.register("vllm:num_requests_running", "Running", Gauge::<i64>::default());
        registry
    }

    #[test]
    fn the_older_format_names_a_counters_family_like_its_samples() {
        let text = encode(&registry(), Format::Text).unwrap();
        assert_eq!(
            text,
            "# HELP vllm:prompt_tokens_total Tokens.\n# TYPE vllm:prompt_tokens_total counter\n\
             vllm:prompt_tokens_total 3\n# HELP vllm:num_requests_running Running.\n\
             # TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n"
        );
    }

    #[test]
    fn openmetrics_ends_with_its_mark() {
        assert!(encode(&registry(), Format::OpenMetrics).unwrap().ends_with("# EOF\n"));
    }
}
