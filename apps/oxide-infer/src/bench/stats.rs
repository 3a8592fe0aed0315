//! Percentiles and rates.

use super::Outcome;
use super::client::{Failure, Sample};
use serde::Serialize;

/// Of a set of measurements, in the unit that they have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Distribution {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Distribution {
    /// `None` if there is nothing to describe.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        values.sort_by(f64::total_cmp);
        let at = |percent| percentile(&values, percent);
        Some(Self {
            mean: values.iter().sum::<f64>() / values.len() as f64,
            p50: at(50.0),
            p90: at(90.0),
            p95: at(95.0),
            p99: at(99.0),
            min: at(0.0),
            max: at(100.0),
        })
    }
}

/// Linear interpolation between the closest ranks, as NumPy's `percentile` does. `sorted` is not empty.
fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let rank = percent / 100.0 * (sorted.len() - 1) as f64;
    let (below, above) = (rank.floor() as usize, rank.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * (rank - below as f64)
}

/// What a benchmark over HTTP found. Times are milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) completed: usize,
    pub(crate) failed: usize,
    pub(crate) duration_s: f64,
    pub(crate) input_tokens: usize,
    pub(crate) output_tokens: usize,
    /// Completed requests per second.
    pub(crate) requests_per_s: f64,
    pub(crate) output_tokens_per_s: f64,
    /// Prompts and answers.
    pub(crate) total_tokens_per_s: f64,
    /// Time from sending a request to its first token.
    pub(crate) ttft_ms: Option<Distribution>,
    /// The same of the requests that a closed loop sends at once at the start.
    pub(crate) ttft_first_wave_ms: Option<Distribution>,
    /// The same of all others.
    pub(crate) ttft_afterwards_ms: Option<Distribution>,
    /// Time from one piece of the stream to the next, over all requests.
    pub(crate) itl_ms: Option<Distribution>,
    /// For each request of two tokens or more: time after the first token, per token.
    pub(crate) tpot_ms: Option<Distribution>,
    /// Time from sending a request to its end.
    pub(crate) e2e_ms: Option<Distribution>,
}

impl Summary {
    pub(crate) fn of(outcome: &Outcome) -> Self {
        const MS: f64 = 1e3;
        let samples: Vec<_> = outcome.samples().collect();
        let seconds = outcome.duration.as_secs_f64();
        let input_tokens = samples.iter().map(|s| s.input_tokens).sum();
        let output_tokens = samples.iter().map(|s| s.output_tokens).sum();
        let per_second = |count: usize| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let times = |of: &dyn Fn(&Sample) -> Option<f64>| {
            Distribution::of(samples.iter().filter_map(|s| of(s)).map(|seconds| seconds * MS).collect())
        };
        let ttft = |part: &[Result<Sample, Failure>]| {
            let answered = part.iter().filter_map(|result| result.as_ref().ok());
            Distribution::of(answered.map(|s| s.ttft.as_secs_f64() * MS).collect())
        };
        let (first_wave, afterwards) = outcome.results.split_at(outcome.first_wave);
        let itl = samples.iter().flat_map(|s| &s.gaps).map(|gap| gap.as_secs_f64() * MS);
        Self {
            completed: samples.len(),
            failed: outcome.failures().count(),
            duration_s: seconds,
            input_tokens,
            output_tokens,
            requests_per_s: per_second(samples.len()),
            output_tokens_per_s: per_second(output_tokens),
            total_tokens_per_s: per_second(input_tokens + output_tokens),
            ttft_ms: times(&|s| Some(s.ttft.as_secs_f64())),
            ttft_first_wave_ms: ttft(first_wave),
            ttft_afterwards_ms: ttft(afterwards),
            itl_ms: Distribution::of(itl.collect()),
            tpot_ms: times(&|s| {
                let after_first = (s.e2e - s.ttft).as_secs_f64();
                (s.output_tokens > 1).then(|| after_first / (s.output_tokens - 1) as f64)
            }),
            e2e_ms: times(&|s| Some(s.e2e.as_secs_f64())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn percentiles_interpolate_between_ranks() {
        // numpy.percentile([15, 20, 35, 40, 50], [50, 90, 95, 99]) = [35, 46, 48, 49.6]
        let found = Distribution::of(vec![50.0, 15.0, 40.0, 20.0, 35.0]).unwrap();
        assert_eq!((found.mean, found.min, found.max), (32.0, 15.0, 50.0));
        for (value, expected) in [(found.p50, 35.0), (found.p90, 46.0), (found.p95, 48.0), (found.p99, 49.6)]
        {
            assert!((value - expected).abs() < 1e-9, "{value} is not {expected}");
        }
    }

    #[test]
    fn one_value_is_every_percentile_and_none_is_nothing() {
        let found = Distribution::of(vec![3.0]).unwrap();
        assert_eq!((found.mean, found.p50, found.p99), (3.0, 3.0, 3.0));
        assert_eq!(Distribution::of(vec![]), None);
    }

    #[test]
    fn rates_and_times_follow_their_definitions() {
        let ms = Duration::from_millis;
        let sample = |ttft, e2e, gaps, input_tokens, output_tokens| {
            Ok(Sample { ttft, e2e, gaps, input_tokens, output_tokens, text: String::new() })
        };
        let results = vec![
            // First token after 100 ms, then four more in 200 ms: TPOT 50 ms.
            sample(ms(100), ms(300), vec![ms(50); 4], 10, 5),
            Err(Failure::Status(503)),
            // One token: it has no TPOT.
            sample(ms(200), ms(200), vec![], 30, 1),
        ];
        let found = Summary::of(&Outcome { results, first_wave: 2, duration: ms(500) });
        assert_eq!((found.completed, found.failed), (2, 1));
        assert_eq!((found.input_tokens, found.output_tokens), (40, 6));
        assert!((found.requests_per_s - 4.0).abs() < 1e-9);
        assert!((found.output_tokens_per_s - 12.0).abs() < 1e-9);
        assert!((found.total_tokens_per_s - 92.0).abs() < 1e-9);
        let mean = |d: Option<Distribution>| (d.unwrap().mean * 1e6).round() / 1e6;
        assert_eq!(mean(found.ttft_ms), 150.0);
        assert_eq!(mean(found.ttft_first_wave_ms), 100.0);
        assert_eq!(mean(found.ttft_afterwards_ms), 200.0);
        assert_eq!(mean(found.itl_ms), 50.0);
        assert_eq!(mean(found.tpot_ms), 50.0);
        assert_eq!(mean(found.e2e_ms), 250.0);
    }
}
