//! The engine's own counters, read when a scraper asks.

use oxide_infer_engine::metrics::OperatorCounters;
use oxide_infer_engine::{EngineHandle, MetricsSnapshot, PlanGoal};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt::Error;

/// vLLM's buckets of `iteration_tokens_total`. The engine's go further; what is above falls into the last, open one.
const ITERATION_TOKEN_BUCKETS: usize = 13;

/// Turns the engine's counters into metrics.
#[derive(Debug)]
pub(super) struct EngineCollector {
    prefix: String,
    engine: EngineHandle,
}

impl EngineCollector {
    pub(super) fn new(prefix: &str, engine: &EngineHandle) -> Self {
        Self { prefix: prefix.to_owned(), engine: engine.clone() }
    }
}

impl Collector for EngineCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let now = self.engine.metrics().snapshot();
        let mut out = Writer { encoder, prefix: &self.prefix };
        let running = "Sequences that are computed";
        let waiting = "Sequences that wait for a place among those that are computed";
        let usage = "Part of the KV memory that sequences own, from 0 to 1";
        out.gauge("num_requests_running", running, now.running as f64)?;
        out.gauge("num_requests_waiting", waiting, now.waiting as f64)?;
        out.waiting_by_reason(&now)?;
        out.gauge("kv_cache_usage_perc", usage, now.kv_usage())?;
        // vLLM's older name for the same, which autoscalers still read.
        out.gauge("gpu_cache_usage_perc", usage, now.kv_usage())?;
        out.counter(
            "prefix_cache_queries",
            "Prompt tokens looked up in the prefix cache",
            now.prefix_cache_queries,
        )?;
        out.counter("prefix_cache_hits", "Prompt tokens that the prefix cache had", now.prefix_cache_hits)?;
        out.counter(
            "num_preemptions",
            "Sequences that lost their KV memory and were computed again",
            now.preemptions,
        )?;
        out.counter("prompt_tokens", "Prompt tokens processed", now.prompt_tokens)?;
        out.counter("generation_tokens", "Tokens generated", now.generation_tokens)?;
        out.request_success(&now)?;
        out.iteration_tokens(&now)?;
        let limits = self.engine.limits();
        out.cache_config(limits.page_size, limits.num_pages)?;
        out.plan(self.engine.goal(), self.engine.operators().sha256())?;
        out.operators(&self.engine.operators())
    }
}

struct Writer<'e, 'p> {
    encoder: DescriptorEncoder<'e>,
    prefix: &'p str,
}

impl Writer<'_, '_> {
    fn describe(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        write: impl FnOnce(MetricEncoder<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (name, help) = (format!("{}{name}", self.prefix), format!("{help}."));
        write(self.encoder.encode_descriptor(&name, &help, None, kind)?)
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) -> Result<(), Error> {
        self.describe(name, help, MetricType::Gauge, |encoder| ConstGauge::new(value).encode(encoder))
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> Result<(), Error> {
        self.describe(name, help, MetricType::Counter, |encoder| ConstCounter::new(value).encode(encoder))
    }

    fn waiting_by_reason(&mut self, now: &MetricsSnapshot) -> Result<(), Error> {
        // vLLM defers requests that wait for KV from another machine; here all wait for a place.
        let by_reason = [("capacity", now.waiting as f64), ("deferred", 0.0)];
        let help = "Sequences that wait, by reason";
        self.describe("num_requests_waiting_by_reason", help, MetricType::Gauge, |mut encoder| {
            by_reason.iter().try_for_each(|(reason, count)| {
                ConstGauge::new(*count).encode(encoder.encode_family(&[("reason", *reason)])?)
            })
        })
    }

    fn request_success(&mut self, now: &MetricsSnapshot) -> Result<(), Error> {
        let by_reason = [
            ("stop", now.finished_stop),
            ("length", now.finished_length),
            ("abort", now.finished_cancelled),
            ("error", now.finished_failed),
        ];
        let help = "Answers that ended, by reason";
        self.describe("request_success", help, MetricType::Counter, |mut encoder| {
            by_reason.iter().try_for_each(|(reason, count)| {
                let labels = [("finished_reason", *reason)];
                ConstCounter::new(*count).encode(encoder.encode_family(&labels)?)
            })
        })
    }

    fn iteration_tokens(&mut self, now: &MetricsSnapshot) -> Result<(), Error> {
        let histogram = now.iteration_tokens;
        let bounds = oxide_infer_engine::metrics::ITERATION_TOKEN_BOUNDS;
        let mut buckets: Vec<(f64, u64)> = bounds
            .iter()
            .map(|&bound| bound as f64)
            .zip(histogram.counts)
            .take(ITERATION_TOKEN_BUCKETS)
            .collect();
        buckets.push((f64::MAX, histogram.counts[ITERATION_TOKEN_BUCKETS..].iter().sum()));
        let help = "Tokens computed in a step";
        self.describe("iteration_tokens_total", help, MetricType::Histogram, |mut encoder| {
            encoder.encode_histogram::<NoLabelSet>(histogram.sum as f64, histogram.count(), &buckets, None)
        })
    }

    fn operators(&mut self, counters: &OperatorCounters) -> Result<(), Error> {
        if counters.snapshot().next().is_none() {
            return Ok(());
        }
        let help = "Operators executed on the GPU, by kernel artifact";
        self.describe("operator_executions", help, MetricType::Counter, |mut encoder| {
            counters.snapshot().try_for_each(|(artifact, count)| {
                let labels = [("artifact", artifact)];
                ConstCounter::new(count).encode(encoder.encode_family(&labels)?)
            })
        })
    }

    fn plan(&mut self, goal: PlanGoal, artifacts: Option<&str>) -> Result<(), Error> {
        let goal = match goal {
            PlanGoal::Fastest => "fastest",
            PlanGoal::Deterministic => "deterministic",
        };
        let help = "What the operators were chosen for; always 1";
        self.describe("plan_info", help, MetricType::Gauge, |mut encoder| {
            let artifacts = artifacts.map(|sha256| ("artifacts", sha256));
            let labels: Vec<_> = std::iter::once(("goal", goal)).chain(artifacts).collect();
            ConstGauge::new(1_i64).encode(encoder.encode_family(&labels)?)
        })
    }

    fn cache_config(&mut self, page_size: usize, num_pages: usize) -> Result<(), Error> {
        let labels = [("block_size", page_size.to_string()), ("num_gpu_blocks", num_pages.to_string())];
        self.describe("cache_config_info", "The KV memory; always 1", MetricType::Gauge, |mut encoder| {
            ConstGauge::new(1_i64).encode(encoder.encode_family(&labels)?)
        })
    }
}
