//! What is measured of every generation request, with vLLM's names, meanings and buckets.

use oxide_infer_engine::request::Timings;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const TTFT_BUCKETS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const TOKEN_LATENCY_BUCKETS: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const REQUEST_LATENCY_BUCKETS: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];
const N_BUCKETS: [f64; 5] = [1.0, 2.0, 5.0, 10.0, 20.0];

/// Histograms and counters of generation requests. Durations are in seconds.
#[derive(Debug)]
pub(crate) struct RequestMetrics {
    prompt_tokens_by_source: Family<SourceLabel, Counter>,
    prompt_tokens_cached: Counter,
    prompt_tokens_recomputed: Counter,
    time_to_first_token: Histogram,
    first_tokens: FirstTokens,
    inter_token_latency: Histogram,
    time_per_output_token: Histogram,
    e2e_latency: Histogram,
    queue_time: Histogram,
    inference_time: Histogram,
    prefill_time: Histogram,
    decode_time: Histogram,
    prompt_tokens: Histogram,
    generation_tokens: Histogram,
    prefill_computed_tokens: Histogram,
    max_generation_tokens: Histogram,
    params_n: Histogram,
    params_max_tokens: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabel {
    source: &'static str,
}

const COMPUTED: SourceLabel = SourceLabel { source: "local_compute" };
const CACHED: SourceLabel = SourceLabel { source: "local_cache_hit" };

/// Count and sum of `time_to_first_token`, which the histogram writes but does not give.
#[derive(Debug, Default)]
struct FirstTokens {
    count: AtomicU64,
    nanoseconds: AtomicU64,
}

impl FirstTokens {
    fn observe(&self, since_arrival: Duration) {
        let nanoseconds = u64::try_from(since_arrival.as_nanos()).unwrap_or(u64::MAX);
        self.count.fetch_add(1, Relaxed);
        self.nanoseconds.fetch_add(nanoseconds, Relaxed);
    }
}

/// An answer that ended by itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FinishedChoice {
    /// When the request reached the server.
    pub(crate) arrived: Instant,
    /// When things happened to it in the engine.
    pub(crate) timings: Timings,
    /// Tokens of its prompt.
    pub(crate) prompt_tokens: usize,
    /// Those of them that the prefix cache had.
    pub(crate) cached_tokens: u32,
    /// Tokens of the answer.
    pub(crate) generated: u32,
    /// The limit on the answer.
    pub(crate) max_tokens: u32,
}

impl RequestMetrics {
    pub(super) fn register(registry: &mut Registry, prefix: &str, max_model_len: usize) -> Self {
        let sizes = size_buckets(max_model_len);
        let mut histogram = |name: &str, help: &str, buckets: &[f64]| {
            let histogram = Histogram::new(buckets.iter().copied());
            registry.register(format!("{prefix}{name}"), help, histogram.clone());
            histogram
        };
        let mut seconds =
            |name: &str, help: &str| histogram(&format!("{name}_seconds"), help, &REQUEST_LATENCY_BUCKETS);
        let e2e_latency = seconds("e2e_request_latency", "Time from arrival to the end of an answer");
        let queue_time = seconds("request_queue_time", "Time before a request's first step");
        let inference_time = seconds("request_inference_time", "Time from a request's first step to its end");
        let prefill_time =
            seconds("request_prefill_time", "Time from a request's first step to its first token");
        let decode_time = seconds("request_decode_time", "Time from a request's first token to its end");
        let time_to_first_token =
            histogram("time_to_first_token_seconds", "Time from arrival to the first token", &TTFT_BUCKETS);
        let inter_token_latency = histogram(
            "inter_token_latency_seconds",
            "Time between two tokens of an answer",
            &TOKEN_LATENCY_BUCKETS,
        );
        let time_per_output_token = histogram(
            "request_time_per_output_token_seconds",
            "Mean time between two tokens, of every answer",
            &TOKEN_LATENCY_BUCKETS,
        );
        let prompt_tokens =
            histogram("request_prompt_tokens", "Tokens of the prompt, of every answer", &sizes);
        let generation_tokens = histogram("request_generation_tokens", "Tokens of every answer", &sizes);
        let prefill_computed_tokens = histogram(
            "request_prefill_kv_computed_tokens",
            "Prompt tokens that the prefix cache did not have, of every answer",
            &sizes,
        );
        let max_generation_tokens = histogram(
            "request_max_num_generation_tokens",
            "Tokens of the longest answer to a prompt",
            &sizes,
        );
        let params_n = histogram("request_params_n", "The request parameter n", &N_BUCKETS);
        let params_max_tokens =
            histogram("request_params_max_tokens", "The request parameter max_tokens", &sizes);
        // vLLM's older name for the same measurement, which dashboards still read.
        registry.register(
            format!("{prefix}time_per_output_token_seconds"),
            "As inter_token_latency_seconds",
            inter_token_latency.clone(),
        );
        let prompt_tokens_cached = Counter::default();
        registry.register(
            format!("{prefix}prompt_tokens_cached"),
            "Prompt tokens that the prefix cache had",
            prompt_tokens_cached.clone(),
        );
        let prompt_tokens_recomputed = Counter::default();
        registry.register(
            format!("{prefix}prompt_tokens_recomputed"),
            "Last tokens of prompts that the prefix cache had but for them",
            prompt_tokens_recomputed.clone(),
        );
        let prompt_tokens_by_source = Family::<SourceLabel, Counter>::default();
        for source in [COMPUTED, CACHED] {
            drop(prompt_tokens_by_source.get_or_create(&source));
        }
        registry.register(
            format!("{prefix}prompt_tokens_by_source"),
            "Prompt tokens by where their KV came from",
            prompt_tokens_by_source.clone(),
        );
        Self {
            prompt_tokens_by_source,
            prompt_tokens_cached,
            prompt_tokens_recomputed,
            time_to_first_token,
            first_tokens: FirstTokens::default(),
            inter_token_latency,
            time_per_output_token,
            e2e_latency,
            queue_time,
            inference_time,
            prefill_time,
            decode_time,
            prompt_tokens,
            generation_tokens,
            prefill_computed_tokens,
            max_generation_tokens,
            params_n,
            params_max_tokens,
        }
    }

    /// A prompt has been computed.
    pub(crate) fn prompt_done(&self, prompt_tokens: usize, cached_tokens: u32) {
        let cached = u64::from(cached_tokens);
        self.prompt_tokens_cached.inc_by(cached);
        self.prompt_tokens_by_source.get_or_create(&CACHED).inc_by(cached);
        let computed = (prompt_tokens as u64).saturating_sub(cached);
        self.prompt_tokens_by_source.get_or_create(&COMPUTED).inc_by(computed);
        // A prompt's last token is computed even if its KV is cached, for the logits; as vLLM counts it.
        self.prompt_tokens_recomputed.inc_by(u64::from(computed == 1 && cached > 0));
    }

    /// An answer has its first token.
    pub(crate) fn first_token(&self, since_arrival: Duration) {
        self.time_to_first_token.observe(since_arrival.as_secs_f64());
        self.first_tokens.observe(since_arrival);
    }

    /// Answers that have their first token, and the seconds that all of them took to it.
    pub(crate) fn first_tokens(&self) -> (u64, f64) {
        let FirstTokens { count, nanoseconds } = &self.first_tokens;
        (count.load(Relaxed), Duration::from_nanos(nanoseconds.load(Relaxed)).as_secs_f64())
    }

    /// An answer has another token.
    pub(crate) fn next_token(&self, since_last: Duration) {
        self.inter_token_latency.observe(since_last.as_secs_f64());
    }

    /// An answer has ended by itself.
    pub(crate) fn choice_finished(&self, choice: FinishedChoice) {
        let Timings { arrived, scheduled, first_token, finished, .. } = choice.timings;
        let between = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64();
        let decode_time = between(first_token, finished);
        self.e2e_latency.observe(between(choice.arrived, finished));
        self.queue_time.observe(between(arrived, scheduled));
        self.prefill_time.observe(between(scheduled, first_token));
        self.inference_time.observe(between(scheduled, finished));
        self.decode_time.observe(decode_time);
        let steps = choice.generated.saturating_sub(1);
        self.time_per_output_token.observe(if steps == 0 { 0.0 } else { decode_time / f64::from(steps) });
        self.prompt_tokens.observe(choice.prompt_tokens as f64);
        self.generation_tokens.observe(f64::from(choice.generated));
        let computed = choice.prompt_tokens.saturating_sub(choice.cached_tokens as usize);
        self.prefill_computed_tokens.observe(computed as f64);
        self.params_max_tokens.observe(f64::from(choice.max_tokens));
    }

    /// All `n` answers to a prompt have ended by themselves; the longest has this many tokens.
    pub(crate) fn prompt_finished(&self, n: u32, longest: u32) {
        self.params_n.observe(f64::from(n));
        self.max_generation_tokens.observe(f64::from(longest));
    }
}

/// 1, 2, 5, 10, 20, 50, … up to `max`.
fn size_buckets(max: usize) -> Vec<f64> {
    let decades = std::iter::successors(Some(1_u64), |decade| decade.checked_mul(10));
    let bounds = decades.flat_map(|decade| [1, 2, 5].map(|mantissa| decade.saturating_mul(mantissa)));
    bounds.take_while(|&bound| bound <= max as u64).map(|bound| bound as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_buckets_are_vllms() {
        assert_eq!(size_buckets(100), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(size_buckets(8192).last(), Some(&5000.0));
        assert_eq!(size_buckets(0), Vec::<f64>::new());
    }
}
