//! Two servers side by side: each metric over the turns, the ratio, and whether both did the same work.

use super::Sample;
use super::client::Failure;
use super::stats::{Distribution, Summary};
use super::turns::{Row, Side};
use serde::Serialize;

/// Which direction is an improvement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    Higher,
    Lower,
}

/// A number that a turn has.
pub(crate) struct Metric {
    /// Its key in the record.
    pub(crate) name: &'static str,
    /// Its name for a reader, with the unit.
    pub(crate) label: &'static str,
    pub(crate) better: Better,
    of: fn(&Summary) -> Option<f64>,
}

/// Every metric that is compared.
pub(crate) const METRICS: [Metric; 13] = [
    higher("requests_per_s", "requests/s", |s| Some(s.requests_per_s)),
    higher("output_tokens_per_s", "output tok/s", |s| Some(s.output_tokens_per_s)),
    higher("total_tokens_per_s", "total tok/s", |s| Some(s.total_tokens_per_s)),
    lower("ttft_p50_ms", "TTFT p50 ms", |s| Some(s.ttft_ms.as_ref()?.p50)),
    lower("ttft_p99_ms", "TTFT p99 ms", |s| Some(s.ttft_ms.as_ref()?.p99)),
    lower("ttft_first_wave_p99_ms", "  first wave p99 ms", |s| Some(s.ttft_first_wave_ms.as_ref()?.p99)),
    lower("ttft_afterwards_p99_ms", "  afterwards p99 ms", |s| Some(s.ttft_afterwards_ms.as_ref()?.p99)),
    lower("itl_p50_ms", "ITL p50 ms", |s| Some(s.itl_ms.as_ref()?.p50)),
    lower("itl_p99_ms", "ITL p99 ms", |s| Some(s.itl_ms.as_ref()?.p99)),
    lower("tpot_p50_ms", "TPOT p50 ms", |s| Some(s.tpot_ms.as_ref()?.p50)),
    lower("tpot_p99_ms", "TPOT p99 ms", |s| Some(s.tpot_ms.as_ref()?.p99)),
    lower("e2e_p50_ms", "E2E p50 ms", |s| Some(s.e2e_ms.as_ref()?.p50)),
    lower("e2e_p99_ms", "E2E p99 ms", |s| Some(s.e2e_ms.as_ref()?.p99)),
];

const fn higher(name: &'static str, label: &'static str, of: fn(&Summary) -> Option<f64>) -> Metric {
    Metric { name, label, better: Better::Higher, of }
}

const fn lower(name: &'static str, label: &'static str, of: fn(&Summary) -> Option<f64>) -> Metric {
    Metric { name, label, better: Better::Lower, of }
}

/// One metric of one load.
#[derive(Debug, Serialize)]
pub(crate) struct Compared {
    pub(crate) name: &'static str,
    #[serde(skip)]
    pub(crate) label: &'static str,
    pub(crate) better: Better,
    /// Over the turns of `--url`.
    pub(crate) url: Option<Distribution>,
    /// Over the turns of `--against`.
    pub(crate) against: Option<Distribution>,
    /// Of the medians, over 1 where `--url` is better.
    pub(crate) ratio: Option<f64>,
}

/// Every metric over the turns of a load.
pub(crate) fn metrics(row: &Row) -> Vec<Compared> {
    let compared = METRICS.iter().map(|metric| {
        let over = |side| {
            Distribution::of(row.turns_of(side).filter_map(|turn| (metric.of)(&turn.summary)).collect())
        };
        let (url, against) = (over(Side::Url), over(Side::Against));
        let ratio = ratio(metric.better, url.as_ref(), against.as_ref());
        Compared { name: metric.name, label: metric.label, better: metric.better, url, against, ratio }
    });
    compared.collect()
}

fn ratio(better: Better, url: Option<&Distribution>, against: Option<&Distribution>) -> Option<f64> {
    let (over, under) = match better {
        Better::Higher => (url?.p50, against?.p50),
        Better::Lower => (against?.p50, url?.p50),
    };
    (under > 0.0).then(|| over / under)
}

/// Whether two servers did the same work, by their own counts. Sums are over the requests that both answered in full.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct WorkDone {
    /// Requests that both answered in full, over all rounds.
    pub(crate) answered_by_both: usize,
    /// Requests that one of them or both did not answer in full.
    pub(crate) not_answered_by_both: usize,
    /// Tokens that each counted and was asked for.
    pub(crate) url: Tokens,
    pub(crate) against: Tokens,
    /// Requests whose prompts the two count differently.
    pub(crate) prompts_that_differ_in_length: usize,
    /// Requests whose answers the two count differently.
    pub(crate) answers_that_differ_in_length: usize,
    /// Requests that both answered with the same text.
    pub(crate) answers_that_are_equal: usize,
}

/// What one server counted.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Tokens {
    pub(crate) input: usize,
    pub(crate) output: usize,
    /// Answers of another length than was asked for.
    pub(crate) answers_of_another_length: usize,
}

impl WorkDone {
    /// Compares the two turns of every round, request by request; `None` unless there are two servers.
    pub(crate) fn of(row: &Row) -> Option<Self> {
        row.turns_of(Side::Against).next()?;
        let mut work = Self::default();
        for (url, against) in row.turns_of(Side::Url).zip(row.turns_of(Side::Against)) {
            let requests = row.load.rounds.get(url.round).map_or(&[][..], |round| &round.requests);
            let answers = url.outcome.results.iter().zip(&against.outcome.results);
            for (request, (url, against)) in requests.iter().zip(answers) {
                work.add(request.max_tokens, url, against);
            }
        }
        Some(work)
    }

    fn add(&mut self, asked: usize, url: &Result<Sample, Failure>, against: &Result<Sample, Failure>) {
        let (Ok(url), Ok(against)) = (url, against) else {
            self.not_answered_by_both += 1;
            return;
        };
        self.answered_by_both += 1;
        self.url.add(asked, url);
        self.against.add(asked, against);
        self.prompts_that_differ_in_length += usize::from(url.input_tokens != against.input_tokens);
        self.answers_that_differ_in_length += usize::from(url.output_tokens != against.output_tokens);
        self.answers_that_are_equal += usize::from(url.text == against.text);
    }

    /// Both counted the same tokens for every request, and as many as were asked for.
    pub(crate) fn is_the_same(&self) -> bool {
        self.not_answered_by_both == 0
            && self.prompts_that_differ_in_length == 0
            && self.answers_that_differ_in_length == 0
            && self.url.answers_of_another_length == 0
    }
}

impl Tokens {
    fn add(&mut self, asked: usize, sample: &Sample) {
        self.input += sample.input_tokens;
        self.output += sample.output_tokens;
        self.answers_of_another_length += usize::from(sample.output_tokens != asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Outcome;
    use crate::bench::turns::{Load, Round, Turn};
    use crate::bench::workload::{Arrivals, Prompt, Request};
    use std::num::NonZeroUsize;
    use std::time::Duration;

    fn sample(ttft: u64, input_tokens: usize, output_tokens: usize, text: &str) -> Result<Sample, Failure> {
        let ms = Duration::from_millis;
        let text = text.to_owned();
        Ok(Sample {
            ttft: ms(ttft),
            e2e: ms(ttft + 10),
            gaps: vec![ms(10)],
            input_tokens,
            output_tokens,
            text,
        })
    }

    type Answers = [Result<Sample, Failure>; 2];

    /// Rounds of two requests of two tokens, with what each side answered in each round and in how many ms.
    fn row(answers: Vec<(Side, u64, Answers)>) -> Row {
        let request = Request { prompt: Prompt::Tokens(vec![1, 2, 3]), max_tokens: 2 };
        let arrivals = Arrivals::closed_loop(2, NonZeroUsize::MIN);
        let rounds = answers.len().div_ceil(2);
        let rounds =
            (0..rounds).map(|_| Round { requests: vec![request.clone(); 2], arrivals: arrivals.clone() });
        let load = Load { concurrency: None, warmup: Vec::new(), rounds: rounds.collect() };
        let turns = answers.into_iter().enumerate().map(|(i, (side, ms, results))| {
            let outcome =
                Outcome { results: results.into(), first_wave: 1, duration: Duration::from_millis(ms) };
            Turn { round: i / 2, side, summary: Summary::of(&outcome), outcome }
        });
        Row { load, turns: turns.collect() }
    }

    fn alike(ttft: u64) -> Answers {
        [sample(ttft, 3, 2, "ab"), sample(ttft, 3, 2, "cd")]
    }

    #[test]
    fn ratios_are_of_medians_and_over_one_where_the_first_is_better_in_either_direction() {
        use Side::{Against, Url};
        // 4 tokens in 100, 200 and 400 ms: median 20 tokens/s. Against: 400, 400 and 800 ms, 10 tokens/s.
        let row = row(vec![
            (Url, 100, alike(20)),
            (Against, 400, alike(90)),
            (Against, 400, alike(60)),
            (Url, 200, alike(30)),
            (Url, 400, alike(50)),
            (Against, 800, alike(70)),
        ]);
        let metrics = metrics(&row);
        let found = |name: &str| metrics.iter().find(|metric| metric.name == name).unwrap();
        let rate = found("output_tokens_per_s");
        let near = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-9, "{value}");
        near(rate.url.as_ref().unwrap().p50, 20.0);
        near(rate.url.as_ref().unwrap().max, 40.0);
        near(rate.against.as_ref().unwrap().min, 5.0);
        near(rate.ratio.unwrap(), 2.0);
        // Lower is better: 70 / 30.
        near(found("ttft_p50_ms").ratio.unwrap(), 70.0 / 30.0);
        near(found("ttft_first_wave_p99_ms").url.as_ref().unwrap().p50, 30.0);
        assert_eq!(WorkDone::of(&row).unwrap().answers_that_are_equal, 6);
        assert!(WorkDone::of(&row).unwrap().is_the_same());
    }

    #[test]
    fn one_server_has_neither_ratios_nor_work_to_compare() {
        let row = row(vec![(Side::Url, 100, alike(20))]);
        assert!(metrics(&row).iter().all(|metric| metric.ratio.is_none() && metric.against.is_none()));
        assert_eq!(WorkDone::of(&row), None);
    }

    #[test]
    fn work_that_differs_is_counted_request_by_request() {
        let longer = [sample(20, 4, 2, "ab"), sample(20, 3, 1, "c")];
        let found =
            WorkDone::of(&row(vec![(Side::Url, 100, alike(20)), (Side::Against, 100, longer)])).unwrap();
        let expected = WorkDone {
            answered_by_both: 2,
            url: Tokens { input: 6, output: 4, answers_of_another_length: 0 },
            against: Tokens { input: 7, output: 3, answers_of_another_length: 1 },
            prompts_that_differ_in_length: 1,
            answers_that_differ_in_length: 1,
            answers_that_are_equal: 1,
            ..WorkDone::default()
        };
        assert_eq!(found, expected);
        assert!(!found.is_the_same());

        let failed = [sample(20, 3, 2, "ab"), Err(Failure::Timeout)];
        let found =
            WorkDone::of(&row(vec![(Side::Url, 100, alike(20)), (Side::Against, 100, failed)])).unwrap();
        assert_eq!((found.answered_by_both, found.not_answered_by_both), (1, 1));
        assert!(!found.is_the_same());

        // Both ended before what was asked for: the same work, but not the one that the row names.
        let short = || [sample(20, 3, 1, "a"), sample(20, 3, 2, "cd")];
        let found =
            WorkDone::of(&row(vec![(Side::Url, 100, short()), (Side::Against, 100, short())])).unwrap();
        assert_eq!(found.answers_that_differ_in_length, 0);
        assert!(!found.is_the_same());
    }
}
