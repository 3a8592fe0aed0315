//! The block of the kernels in Rust: their artifacts, and their times beside the artifacts that models run through.

use super::evidence::{Content, Evidence};
use super::tables::{Links, Row, artifacts, short};
use crate::natives::{FINDING, Fastest, Line, Table};
use crate::record::{Finding, Record};

/// As [`artifacts`], and the newest times.
pub(super) fn block(rows: &[Row<'_>], evidence: &Evidence, links: &Links) -> String {
    let mut lines = vec![artifacts(rows, links), String::new()];
    match newest(evidence) {
        None => lines.push("No record of their times.".to_owned()),
        Some((file, record, finding)) => {
            let (link, revision) = (links.to(file), short(&record.revision));
            lines.push(format!("Times at revision {revision} ({link}), each of the fastest algorithm:"));
            lines.extend(
                [
                    "",
                    "| work | bytes at 4.2 TB/s + 2.5 µs | `oxide_native`, µs | `oxide_tile`, µs | |",
                    "|---|---|---|---|---|",
                ]
                .map(str::to_owned),
            );
            lines.extend(Table::of(&finding.measured).0.iter().map(row));
        }
    }
    lines.join("\n")
}

fn newest(evidence: &Evidence) -> Option<(&str, &Record, &Finding)> {
    evidence.files.iter().rev().find_map(|file| {
        let Content::Gates(record) = &file.content else { return None };
        let finding = record.findings.iter().find(|finding| finding.gate == FINDING)?;
        Some((file.name.as_str(), record, finding))
    })
}

fn row((work, line): (&String, &Line)) -> String {
    let shown = |fastest: &Option<Fastest>| match fastest {
        Some(Fastest { by, us }) => format!("{us:.2} by `{by}`"),
        None => "none".to_owned(),
    };
    let verdict = match (&line.native, &line.tile) {
        (Some(native), Some(tile)) if native.us > tile.us => {
            format!("experimental: {:.2} times as long", native.us / tile.us)
        }
        (Some(native), Some(tile)) => format!("{:.2} times as fast", tile.us / native.us),
        _ => "nothing to compare with".to_owned(),
    };
    let (native, tile) = (shown(&line.native), shown(&line.tile));
    format!("| {work} | {:.2} | {native} | {tile} | {verdict} |", line.floor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slower_kernel_is_called_experimental_and_by_how_much() {
        let fastest = |by: &str, us| Some(Fastest { by: by.to_owned(), us });
        let line = |native, tile| Line { floor: 2.0, native: fastest("native.a", native), tile };
        let text = |line| row((&"gemv n=8".to_owned(), &line));
        assert_eq!(
            text(line(5.0, fastest("b", 4.0))),
            "| gemv n=8 | 2.00 | 5.00 by `native.a` | 4.00 by `b` | experimental: 1.25 times as long |"
        );
        assert!(text(line(4.0, fastest("b", 5.0))).ends_with("| 1.25 times as fast |"));
        assert!(text(line(4.0, None)).ends_with("| none | nothing to compare with |"));
    }
}
