//! One JSON value in a text that comes character by character.

/// Finds the end of a JSON value without keeping it. It does not check numbers and words, which end where they end.
#[derive(Clone, Debug, Default)]
pub(super) struct ValueScanner {
    kind: Kind,
    /// Brackets that are open.
    depth: usize,
    string: StringState,
}

/// What a character means for the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// It is white space before the value.
    Before,
    /// It is a part of the value, which goes on.
    Inside,
    /// It is the value's last character.
    Last,
    /// The value ended before it.
    After,
    /// No JSON value goes on with it.
    Broken,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Unknown,
    String,
    Brackets,
    Word,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StringState {
    #[default]
    Outside,
    Inside,
    Escaped,
}

impl ValueScanner {
    /// Takes the next character.
    pub(super) fn push(&mut self, c: char) -> Scan {
        match (self.string, self.kind) {
            (StringState::Outside, Kind::Unknown) => self.begin(c),
            (StringState::Outside, Kind::Word) => match is_word(c) {
                true => Scan::Inside,
                false => Scan::After,
            },
            (StringState::Outside, _) => self.between_brackets(c),
            (StringState::Escaped, _) => {
                self.string = StringState::Inside;
                Scan::Inside
            }
            (StringState::Inside, kind) => self.in_string(c, kind),
        }
    }

    fn begin(&mut self, c: char) -> Scan {
        self.kind = match c {
            _ if c.is_whitespace() => return Scan::Before,
            '"' => Kind::String,
            '{' | '[' => Kind::Brackets,
            _ if is_word(c) => Kind::Word,
            _ => return Scan::Broken,
        };
        match self.kind {
            Kind::String => self.string = StringState::Inside,
            Kind::Brackets => self.depth = 1,
            _ => {}
        }
        Scan::Inside
    }

    fn between_brackets(&mut self, c: char) -> Scan {
        match c {
            '"' => self.string = StringState::Inside,
            '{' | '[' => self.depth += 1,
            '}' | ']' => {
                self.depth -= 1;
                if self.depth == 0 {
                    return Scan::Last;
                }
            }
            // Stands nowhere in JSON outside of strings, and begins what models write after it.
            '<' => return Scan::Broken,
            _ => {}
        }
        Scan::Inside
    }

    fn in_string(&mut self, c: char, kind: Kind) -> Scan {
        match c {
            '\\' => self.string = StringState::Escaped,
            '"' => {
                self.string = StringState::Outside;
                if kind == Kind::String {
                    return Scan::Last;
                }
            }
            _ => {}
        }
        Scan::Inside
    }
}

/// Whether a number, `true`, `false` or `null` may have `c`.
fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scans(text: &str) -> Vec<Scan> {
        let mut scanner = ValueScanner::default();
        text.chars().map(|c| scanner.push(c)).collect()
    }

    #[test]
    fn a_value_ends_with_its_last_bracket_or_quote() {
        for text in [r#"{"a":"}\"]","b":[{}]}"#, "[[],[1]]", r#""a\\""#, "{}"] {
            let scans = scans(text);
            let (last, inside) = scans.split_last().unwrap();
            assert_eq!(*last, Scan::Last, "{text}");
            assert!(inside.iter().all(|scan| *scan == Scan::Inside), "{text}");
        }
    }

    #[test]
    fn a_number_ends_before_what_is_none() {
        assert_eq!(scans(" -1.5e3,"), [&[Scan::Before][..], &[Scan::Inside; 6], &[Scan::After]].concat());
    }

    #[test]
    fn what_begins_no_value_and_tags_between_values_are_broken() {
        assert_eq!(scans("}"), [Scan::Broken]);
        assert_eq!(scans("{<").last(), Some(&Scan::Broken));
        assert_eq!(scans(r#"{"<"#).last(), Some(&Scan::Inside));
    }
}
