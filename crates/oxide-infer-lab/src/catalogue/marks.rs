//! The parts of a document that a command writes.

use anyhow::{Result, ensure};
use std::collections::HashSet;
use std::fmt::Write;
use std::ops::Range;

/// The text with `block` between the marks of that name, each of which must be there once, in order.
pub(super) fn replace(text: &str, name: &str, block: &str) -> Result<String> {
    let range = between(text, name)?;
    Ok(format!("{}{block}\n{}", &text[..range.start], &text[range.end..]))
}

/// The lines that only one of the texts has, after the number of the first that differs; nothing if the texts are equal.
pub(super) fn difference(before: &str, after: &str) -> Option<String> {
    if before == after {
        return None;
    }
    let same = before.lines().zip(after.lines()).take_while(|(a, b)| a == b).count();
    let mut out = format!("from line {}:\n", same + 1);
    for (sign, text, other) in [('-', before, after), ('+', after, before)] {
        let known: HashSet<_> = other.lines().collect();
        for line in text.lines().filter(|line| !known.contains(line)) {
            // Writing to a String does not fail.
            let _ = writeln!(out, "{sign} {line}");
        }
    }
    Some(out)
}

/// The bytes after the line of the first mark, up to the second.
fn between(text: &str, name: &str) -> Result<Range<usize>> {
    let begin = format!("<!-- made by oxide-infer-lab catalogue: {name} -->\n");
    let end = format!("<!-- end: {name} -->");
    for mark in [begin.trim_end(), &end] {
        let count = text.matches(mark).count();
        ensure!(count == 1, "the mark {mark} is there {count} times; it must be there once");
    }
    let (start, end) = (text.find(&begin).map(|at| at + begin.len()), text.find(&end));
    match (start, end) {
        (Some(start), Some(end)) if start <= end => Ok(start..end),
        _ => anyhow::bail!("the marks of {name} must be whole lines, the first before the second"),
    }
}
