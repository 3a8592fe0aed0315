//! Results as a table and as JSON.

use super::client::Failure;
use super::compare::{Compared, WorkDone};
use super::offline::EngineSpeed;
use super::stats::{Distribution, Summary};
use crate::cli::values::ByteSize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// How often each failure happened.
pub(crate) fn count_failures<'a>(failures: impl IntoIterator<Item = &'a Failure>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for failure in failures {
        *counts.entry(failure.to_string()).or_insert(0) += 1;
    }
    counts
}

/// The summary for a reader.
pub(crate) fn table(summary: &Summary, failures: &BTreeMap<String, usize>) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{name:<28}{value}");
    };
    line("requests completed", summary.completed.to_string());
    line("requests failed", summary.failed.to_string());
    for (reason, count) in failures {
        line("", format!("{count} × {reason}"));
    }
    line("duration", format!("{:.2} s", summary.duration_s));
    line("input tokens", summary.input_tokens.to_string());
    line("output tokens", summary.output_tokens.to_string());
    line("requests per second", format!("{:.3}", summary.requests_per_s));
    line("output tokens per second", format!("{:.2}", summary.output_tokens_per_s));
    line("total tokens per second", format!("{:.2}", summary.total_tokens_per_s));
    let _ = writeln!(out, "\n{:<14}{:>10}{:>10}{:>10}{:>10}{:>10}", "ms", "mean", "p50", "p90", "p95", "p99");
    // Where all requests are of one kind, the line above says it already.
    let (first_wave, afterwards) = match (&summary.ttft_first_wave_ms, &summary.ttft_afterwards_ms) {
        (Some(_), Some(_)) => (&summary.ttft_first_wave_ms, &summary.ttft_afterwards_ms),
        _ => (&None, &None),
    };
    for (name, times) in [
        ("TTFT", &summary.ttft_ms),
        ("  first wave", first_wave),
        ("  afterwards", afterwards),
        ("ITL", &summary.itl_ms),
        ("TPOT", &summary.tpot_ms),
        ("E2E", &summary.e2e_ms),
    ] {
        if times.is_some() || !name.starts_with(' ') {
            row(&mut out, name, times.as_ref());
        }
    }
    out
}

fn row(out: &mut String, name: &str, times: Option<&Distribution>) {
    let _ = write!(out, "{name:<14}");
    match times {
        Some(t) => {
            for value in [t.mean, t.p50, t.p90, t.p95, t.p99] {
                let _ = write!(out, "{value:>10.2}");
            }
            out.push('\n');
        }
        None => out.push_str("         -\n"),
    }
}

/// Every metric over the turns of one server, or of two with the ratios, for a reader.
pub(crate) fn turns_table(metrics: &[Compared], turns: usize) -> String {
    let two = metrics.iter().any(|metric| metric.against.is_some());
    let mut out = format!("{:<22}{:>30}", format!("median of {turns} (range)"), "--url");
    if two {
        let _ = write!(out, "{:>30}{:>8}", "--against", "ratio");
    }
    out.push('\n');
    for metric in metrics.iter().filter(|metric| metric.url.is_some() || metric.against.is_some()) {
        let _ = write!(out, "{:<22}{:>30}", metric.label, spread(metric.url.as_ref()));
        if two {
            let ratio = metric.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
            let _ = write!(out, "{:>30}{ratio:>8}", spread(metric.against.as_ref()));
        }
        out.push('\n');
    }
    if two {
        out.push_str("A ratio over 1 means that --url is better.\n");
    }
    out
}

fn spread(values: Option<&Distribution>) -> String {
    values.map_or_else(|| "-".to_owned(), |v| format!("{:.2} ({:.2} to {:.2})", v.p50, v.min, v.max))
}

/// Whether two servers did the same work, for a reader.
pub(crate) fn work_lines(work: &WorkDone) -> String {
    let WorkDone { url, against, answered_by_both: both, .. } = work;
    let mut out = if work.is_the_same() {
        format!("same work: {both} requests, {} tokens in and {} out on each\n", url.input, url.output)
    } else {
        format!(
            "NOT THE SAME WORK: of {both} requests that both answered, {} tokens in and {} out on --url, {} in and {} out \
             on --against\n",
            url.input, url.output, against.input, against.output
        )
    };
    for (count, what) in [
        (work.not_answered_by_both, "requests were not answered in full by both"),
        (work.prompts_that_differ_in_length, "prompts have another number of tokens on --against"),
        (work.answers_that_differ_in_length, "answers have another number of tokens on --against"),
        (url.answers_of_another_length, "answers of --url are not as long as was asked for"),
        (against.answers_of_another_length, "answers of --against are not as long as was asked for"),
    ] {
        if count > 0 {
            let _ = writeln!(out, "  {count} {what}");
        }
    }
    let _ = writeln!(out, "answers: {} of {both} have the same text on both", work.answers_that_are_equal);
    out
}

/// The engine's speed for a reader.
pub(crate) fn speed_table(speed: &EngineSpeed) -> String {
    let mut out = format!("{:<20}{:>10}{:>10}{:>10}{:>10}\n", "", "median", "mean", "min", "max");
    for (name, values) in [
        ("prefill tok/s", Some(&speed.prefill_tokens_per_s)),
        ("decode tok/s", speed.decode_tokens_per_s.as_ref()),
        ("output tok/s", Some(&speed.output_tokens_per_s)),
        ("first token ms", Some(&speed.first_token_ms)),
        ("decode step ms", speed.decode_step_ms.as_ref()),
    ] {
        if let Some(of) = values {
            let decimals = if name.ends_with("ms") { 3 } else { 1 };
            let _ = write!(out, "{name:<20}");
            for value in [of.p50, of.mean, of.min, of.max] {
                let _ = write!(out, "{value:>10.decimals$}");
            }
            out.push('\n');
        }
    }
    if let Some(bytes) = speed.peak_rss_bytes {
        let _ = writeln!(out, "peak memory         {}", ByteSize(bytes));
    }
    out
}

/// Writes a result as JSON to a file, or to standard output for `-`.
pub(crate) fn write_json(path: &Path, result: &serde_json::Value) -> anyhow::Result<()> {
    use anyhow::Context;
    let text = format!("{result:#}\n");
    if path.as_os_str() == "-" {
        return Ok(crate::terminal::print(&text)?);
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
