//! Texts and other servers' grammars as grammars in Lark's form.

/// A grammar of these texts.
pub(super) fn alternatives(texts: &[String]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
    format!("start: {}", quoted.join(" | "))
}

/// A text as Lark writes it: its strings are JSON's.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A regular expression without the anchors that matching a whole text makes needless.
pub(super) fn unanchored(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        // An even number of backslashes before it leaves the `$` an anchor.
        Some(inner) if (inner.len() - inner.trim_end_matches('\\').len()) % 2 == 0 => inner,
        _ => regex,
    }
}

/// A grammar in Lark's form of one that may be in llama.cpp's (GBNF), whose rules are `name ::= …` and start at `root`.
///
/// # Errors
/// A grammar with `::=` has a text or class without end, or no rule `root`; or one has a JSON schema in it, whose numbers
/// and depth nothing would bound.
pub(super) fn from_ebnf(grammar: &str) -> Result<String, String> {
    if grammar.contains("%json") {
        return Err("has '%json', which is not supported; send a JSON schema as such".to_owned());
    }
    if !grammar.contains("::=") {
        return Ok(grammar.to_owned());
    }
    let pieces = Piece::split(grammar)?;
    if !pieces.contains(&Piece::Defines) {
        return Ok(grammar.to_owned());
    }
    let mut names: Vec<&str> = Vec::new();
    let mut lark = String::new();
    for (index, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Name(name) => {
                // Whatever stands before a definition ends the rule before it.
                let defined = pieces.get(index + 1) == Some(&Piece::Defines);
                lark.push(if defined { '\n' } else { ' ' });
                lark.push_str(&rule_name(&mut names, name));
            }
            Piece::Defines => lark.push_str(": "),
            Piece::Text(text) => {
                lark.push(' ');
                lark.push_str(text);
            }
            Piece::Class(class) => {
                lark.push_str(" /");
                lark.push_str(&class.replace('/', "\\/"));
                lark.push('/');
            }
            Piece::Other('.') => lark.push_str(" /(?s:.)/"),
            Piece::Other(other) => lark.push(*other),
        }
    }
    match names.contains(&"root") {
        true => Ok(lark),
        false => Err("has rules with '::=' and none is named 'root'".to_owned()),
    }
}

/// Lark's rules are named in lower case and without hyphens, so they are numbered to stay apart.
fn rule_name<'a>(names: &mut Vec<&'a str>, name: &'a str) -> String {
    let number = names.iter().position(|known| *known == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    });
    match name {
        "root" => "start".to_owned(),
        _ => format!("{}_{number}", name.to_ascii_lowercase().replace('-', "_")),
    }
}

/// A piece of a grammar in llama.cpp's form, comments and blanks left out.
#[derive(Debug, PartialEq)]
enum Piece<'a> {
    Name(&'a str),
    Defines,
    /// With its quotes.
    Text(&'a str),
    /// With its brackets.
    Class(&'a str),
    /// A brace with what is in it comes character by character, too.
    Other(char),
}

impl<'a> Piece<'a> {
    fn split(grammar: &'a str) -> Result<Vec<Self>, String> {
        let mut pieces = Vec::new();
        let mut rest = grammar;
        let mut in_braces = false;
        while let Some(first) = rest.chars().next() {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            let (piece, width) = match first {
                '#' => (None, rest.find('\n').unwrap_or(rest.len())),
                '"' => enclosed(rest, '"').map(|text| (Some(Self::Text(text)), text.len()))?,
                '[' => enclosed(rest, ']').map(|class| (Some(Self::Class(class)), class.len()))?,
                ':' if rest.starts_with("::=") => (Some(Self::Defines), 3),
                _ if is_name(first) && !in_braces => {
                    let width = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
                    (Some(Self::Name(&rest[..width])), width)
                }
                _ if first.is_whitespace() => (None, first.len_utf8()),
                _ => (Some(Self::Other(first)), first.len_utf8()),
            };
            in_braces = first == '{' || (in_braces && first != '}');
            pieces.extend(piece);
            rest = &rest[width..];
        }
        Ok(pieces)
    }
}

/// The beginning of `text` up to its first `end` that is not escaped.
fn enclosed(text: &str, end: char) -> Result<&str, String> {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == end => return Ok(&text[..at + c.len_utf8()]),
            _ => {}
        }
    }
    Err(format!("has no '{end}' that ends {}", text.chars().take(40).collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_dropped_and_escaped_dollars_kept() {
        for (regex, expected) in [("^a$", "a"), ("a", "a"), (r"a\$", r"a\$"), (r"a\\$", r"a\\"), ("$", "")] {
            assert_eq!(unanchored(regex), expected);
        }
    }

    #[test]
    fn texts_are_quoted() {
        let texts = ["a\"b\\c\n".to_owned(), "é|d".to_owned()];
        assert_eq!(alternatives(&texts), r#"start: "a\"b\\c\n" | "é|d""#);
    }

    #[test]
    fn rules_with_two_colons_become_larks() {
        let grammar = "# A sum.\nroot ::= Term-A (\"+\" [0-9/]{1,2} |\n  .)\nTerm-A ::= \"x]\" | [^\\]\"]*\n";
        let lark = from_ebnf(grammar).unwrap();
        assert_eq!(
            lark,
            "\nstart:  term_a_1( \"+\" /[0-9\\/]/{1,2}| /(?s:.)/)\nterm_a_1:  \"x]\"| /[^\\]\"]/*"
        );
    }

    #[test]
    fn a_schema_inside_of_a_grammar_is_refused() {
        assert!(from_ebnf("start: %json {\"multipleOf\": 4000037}").unwrap_err().contains("'%json'"));
    }

    #[test]
    fn larks_own_form_stays_as_it_is() {
        for grammar in ["start: A /b[/]/\nA: \"::=\"", "start: /[\"/"] {
            assert_eq!(from_ebnf(grammar).as_deref(), Ok(grammar));
        }
    }

    #[test]
    fn a_grammar_without_root_or_end_is_refused() {
        assert!(from_ebnf("a ::= \"b\"").unwrap_err().contains("'root'"));
        assert!(from_ebnf("root ::= \"b").unwrap_err().contains("no '\"'"));
    }
}
