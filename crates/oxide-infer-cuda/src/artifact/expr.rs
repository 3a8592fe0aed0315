//! Integer expressions over named dimensions: grids, shapes, strides and scalars of a manifest.
//!
//! ```text
//! sum     = product { ("+" | "-") product }
//! product = atom { ("*" | "/" | "%") atom }
//! atom    = number | name | "(" sum ")" | function "(" sum "," sum ")"
//! function = "min" | "max" | "ceil_div"
//! ```
//!
//! All values are `u64`; division rounds down, and overflow, a negative difference and division by zero are errors.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use thiserror::Error;

/// Values of dimensions by name.
pub type Dimensions = BTreeMap<String, u64>;

/// Longest expression text admitted.
const MAX_LENGTH: usize = 512;
/// Deepest nesting admitted, which bounds the parser's recursion.
const MAX_DEPTH: usize = 32;

/// A parsed expression. Shows and serializes as the text it was parsed from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Expr {
    text: String,
    node: Node,
}

/// Why a text is no expression.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// The text is longer than any real expression.
    #[error("expression of {length} bytes is longer than {MAX_LENGTH}")]
    TooLong {
        /// Bytes of the text.
        length: usize,
    },
    /// The text nests more parentheses than any real expression.
    #[error("expression {text:?} nests deeper than {MAX_DEPTH}")]
    TooDeep {
        /// The whole text.
        text: String,
    },
    /// Something else stands where the grammar wants `expected`.
    #[error("expression {text:?}: expected {expected} at byte {at}")]
    Unexpected {
        /// The whole text.
        text: String,
        /// What the grammar wants there.
        expected: &'static str,
        /// Where, in bytes from the start.
        at: usize,
    },
    /// A number that does not fit `u64`.
    #[error("expression {text:?}: number at byte {at} does not fit 64 bits")]
    NumberTooLarge {
        /// The whole text.
        text: String,
        /// Where, in bytes from the start.
        at: usize,
    },
}

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EvalError {
    /// No value was given for a dimension.
    #[error("expression {expr:?} needs dimension {name:?}, which has no value")]
    UnknownDimension {
        /// The expression.
        expr: String,
        /// The dimension.
        name: String,
    },
    /// A step left the range of `u64`.
    #[error("expression {expr:?} leaves the range of 64-bit unsigned numbers")]
    OutOfRange {
        /// The expression.
        expr: String,
    },
    /// A division or remainder by zero.
    #[error("expression {expr:?} divides by zero")]
    DivisionByZero {
        /// The expression.
        expr: String,
    },
}

impl Expr {
    /// Parse the text of an expression.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        if text.len() > MAX_LENGTH {
            return Err(ParseError::TooLong { length: text.len() });
        }
        let mut parser = Parser { text, at: 0, depth: 0 };
        let node = parser.sum()?;
        parser.skip_spaces();
        if parser.at < text.len() {
            return Err(parser.unexpected("an operator or the end"));
        }
        Ok(Self { text: text.to_owned(), node })
    }

    /// The value under `dimensions`.
    pub fn eval(&self, dimensions: &Dimensions) -> Result<u64, EvalError> {
        self.node.eval(dimensions).map_err(|failure| {
            let expr = self.text.clone();
            match failure {
                Failure::Unknown(name) => EvalError::UnknownDimension { expr, name },
                Failure::Range => EvalError::OutOfRange { expr },
                Failure::Zero => EvalError::DivisionByZero { expr },
            }
        })
    }

    /// The dimensions that the expression names, in the order of its text, repeated as there.
    pub fn names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.node.collect_names(&mut names);
        names
    }

    /// The text the expression was parsed from.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl TryFrom<String> for Expr {
    type Error = ParseError;

    fn try_from(text: String) -> Result<Self, ParseError> {
        Self::parse(&text)
    }
}

impl From<Expr> for String {
    fn from(expr: Expr) -> String {
        expr.text
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Number(u64),
    Name(String),
    Binary(Op, Box<Node>, Box<Node>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    Min,
    Max,
    CeilDiv,
}

enum Failure {
    Unknown(String),
    Range,
    Zero,
}

impl Node {
    fn eval(&self, dimensions: &Dimensions) -> Result<u64, Failure> {
        match self {
            Self::Number(value) => Ok(*value),
            Self::Name(name) => dimensions.get(name).copied().ok_or_else(|| Failure::Unknown(name.clone())),
            Self::Binary(op, left, right) => op.apply(left.eval(dimensions)?, right.eval(dimensions)?),
        }
    }

    fn collect_names<'a>(&'a self, names: &mut Vec<&'a str>) {
        match self {
            Self::Number(_) => {}
            Self::Name(name) => names.push(name),
            Self::Binary(_, left, right) => {
                left.collect_names(names);
                right.collect_names(names);
            }
        }
    }
}

impl Op {
    fn apply(self, left: u64, right: u64) -> Result<u64, Failure> {
        match self {
            Self::Add => left.checked_add(right).ok_or(Failure::Range),
            Self::Sub => left.checked_sub(right).ok_or(Failure::Range),
            Self::Mul => left.checked_mul(right).ok_or(Failure::Range),
            Self::Div => left.checked_div(right).ok_or(Failure::Zero),
            Self::Rem => left.checked_rem(right).ok_or(Failure::Zero),
            Self::Min => Ok(left.min(right)),
            Self::Max => Ok(left.max(right)),
            Self::CeilDiv if right == 0 => Err(Failure::Zero),
            Self::CeilDiv => Ok(left.div_ceil(right)),
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn sum(&mut self) -> Result<Node, ParseError> {
        self.chain(Self::product, &[(b'+', Op::Add), (b'-', Op::Sub)])
    }

    fn product(&mut self) -> Result<Node, ParseError> {
        self.chain(Self::atom, &[(b'*', Op::Mul), (b'/', Op::Div), (b'%', Op::Rem)])
    }

    /// Operands joined by operators of one precedence, grouped from the left.
    fn chain(
        &mut self,
        operand: fn(&mut Self) -> Result<Node, ParseError>,
        ops: &[(u8, Op)],
    ) -> Result<Node, ParseError> {
        let mut left = operand(self)?;
        loop {
            let next = self.peek();
            let Some(&(_, op)) = ops.iter().find(|(symbol, _)| Some(*symbol) == next) else {
                return Ok(left);
            };
            self.at += 1;
            let right = operand(self)?;
            left = Node::Binary(op, Box::new(left), Box::new(right));
        }
    }

    fn atom(&mut self) -> Result<Node, ParseError> {
        match self.peek() {
            Some(b'0'..=b'9') => self.number(),
            Some(b'a'..=b'z') => self.name_or_call(),
            Some(b'(') => self.nested(|parser| {
                let inner = parser.sum()?;
                parser.expect(b')', "`)`")?;
                Ok(inner)
            }),
            _ => Err(self.unexpected("a number, a name or `(`")),
        }
    }

    fn number(&mut self) -> Result<Node, ParseError> {
        let at = self.at;
        let digits = self.take_while(|byte| byte.is_ascii_digit());
        match digits.parse() {
            Ok(value) => Ok(Node::Number(value)),
            Err(_) => Err(ParseError::NumberTooLarge { text: self.text.to_owned(), at }),
        }
    }

    fn name_or_call(&mut self) -> Result<Node, ParseError> {
        let name = self
            .take_while(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
            .to_owned();
        let op = match name.as_str() {
            "min" => Op::Min,
            "max" => Op::Max,
            "ceil_div" => Op::CeilDiv,
            _ => return Ok(Node::Name(name)),
        };
        self.expect(b'(', "`(`")?;
        self.at -= 1;
        self.nested(|parser| {
            let left = parser.sum()?;
            parser.expect(b',', "`,`")?;
            let right = parser.sum()?;
            parser.expect(b')', "`)`")?;
            Ok(Node::Binary(op, Box::new(left), Box::new(right)))
        })
    }

    /// Parse what follows an opening parenthesis, one level deeper.
    fn nested(
        &mut self,
        inner: impl FnOnce(&mut Self) -> Result<Node, ParseError>,
    ) -> Result<Node, ParseError> {
        if self.depth == MAX_DEPTH {
            return Err(ParseError::TooDeep { text: self.text.to_owned() });
        }
        self.depth += 1;
        self.at += 1;
        let node = inner(self)?;
        self.depth -= 1;
        Ok(node)
    }

    fn expect(&mut self, symbol: u8, expected: &'static str) -> Result<(), ParseError> {
        if self.peek() != Some(symbol) {
            return Err(self.unexpected(expected));
        }
        self.at += 1;
        Ok(())
    }

    fn peek(&mut self) -> Option<u8> {
        self.skip_spaces();
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_spaces(&mut self) {
        self.take_while(|byte| byte == b' ');
    }

    fn take_while(&mut self, admits: impl Fn(u8) -> bool) -> &str {
        let rest = &self.text.as_bytes()[self.at..];
        let length = rest.iter().position(|&byte| !admits(byte)).unwrap_or(rest.len());
        let start = self.at;
        self.at += length;
        &self.text[start..self.at]
    }

    fn unexpected(&self, expected: &'static str) -> ParseError {
        ParseError::Unexpected { text: self.text.to_owned(), expected, at: self.at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn eval(text: &str, dimensions: &[(&str, u64)]) -> Result<u64, EvalError> {
        let dimensions = dimensions.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Expr::parse(text).unwrap().eval(&dimensions)
    }

    #[test]
    fn products_bind_tighter_than_sums_and_group_from_the_left() {
        assert_eq!(eval("2 + 3 * 4", &[]), Ok(14));
        assert_eq!(eval("(2 + 3) * 4", &[]), Ok(20));
        assert_eq!(eval("100 / 7 % 5 * 2", &[]), Ok(8));
        assert_eq!(eval("10 - 3 - 2", &[]), Ok(5));
    }

    #[test]
    fn functions_and_dimensions_evaluate() {
        assert_eq!(eval("ceil_div(m, 128)", &[("m", 129)]), Ok(2));
        assert_eq!(eval("min(m, n_2) + max(m, n_2)", &[("m", 3), ("n_2", 8)]), Ok(11));
        assert_eq!(Expr::parse("ceil_div(m, 8) * n").unwrap().names(), ["m", "n"]);
    }

    #[test]
    fn arithmetic_errors_are_told_apart() {
        let out_of_range = |expr: &str| Err(EvalError::OutOfRange { expr: expr.to_owned() });
        assert_eq!(eval("m * m", &[("m", 1 << 32)]), out_of_range("m * m"));
        assert_eq!(eval("1 - m", &[("m", 2)]), out_of_range("1 - m"));
        for expr in ["1 / m", "1 % m", "ceil_div(1, m)"] {
            assert_eq!(eval(expr, &[("m", 0)]), Err(EvalError::DivisionByZero { expr: expr.to_owned() }));
        }
        let unknown = EvalError::UnknownDimension { expr: "k + 1".to_owned(), name: "k".to_owned() };
        assert_eq!(eval("k + 1", &[]), Err(unknown));
    }

    #[test]
    fn malformed_text_is_refused_with_its_place() {
        for (text, at) in
            [("", 0), ("m +", 3), ("(m", 2), ("m n", 2), ("min(m)", 5), ("min m", 4), ("-1", 0), ("M", 0)]
        {
            match Expr::parse(text) {
                Err(ParseError::Unexpected { at: found, .. }) => assert_eq!(found, at, "{text:?}"),
                other => panic!("{text:?} gave {other:?}"),
            }
        }
        assert!(matches!(Expr::parse("18446744073709551616"), Err(ParseError::NumberTooLarge { at: 0, .. })));
        assert!(matches!(Expr::parse(&"(".repeat(100)), Err(ParseError::TooDeep { .. })));
        assert!(matches!(Expr::parse(&"1".repeat(600)), Err(ParseError::TooLong { length: 600 })));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "[ a-c0-9()+*/%,min_-]{0,80}|.{0,40}") {
            if let Ok(expr) = Expr::parse(&text) {
                let dimensions = expr.names().iter().map(|name| ((*name).to_owned(), 3)).collect();
                let _ = expr.eval(&dimensions);
            }
        }

        #[test]
        fn arithmetic_agrees_with_wider_integers(a in 0u64.., b in 0u64.., c in 1u64..1000) {
            let dimensions = [("a", a), ("b", b), ("c", c)].map(|(name, value)| (name.to_owned(), value)).into();
            let value = Expr::parse("(a + b * c) / c - b % c").unwrap().eval(&dimensions);
            let exact = (i128::from(a) + i128::from(b) * i128::from(c)) / i128::from(c) - i128::from(b % c);
            let fits = u128::from(b) * u128::from(c) + u128::from(a) <= u128::from(u64::MAX) && exact >= 0;
            prop_assert_eq!(value.ok(), fits.then_some(exact as u64));
        }
    }
}
