//! How a selection rule chooses among the artifacts that admit a request.

use super::expr::{Dimensions, EvalError, Expr};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use thiserror::Error;

/// What a rule says of the requests that it is for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// This algorithm serves them.
    Algorithm(String),
    /// The cheapest of these serves them.
    Costs(Costs),
}

/// Predicted nanoseconds of at least one algorithm, as expressions over a request's dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Costs(BTreeMap<String, Expr>);

/// A cost that has no value for a request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the cost of algorithm {algorithm}: {source}")]
pub struct CostError {
    /// Whose cost it is.
    pub algorithm: String,
    /// Why it has no value.
    pub source: EvalError,
}

impl Choice {
    /// Every algorithm that the rule names, with the expression of its cost if it has one.
    pub fn algorithms(&self) -> Vec<(&str, Option<&Expr>)> {
        match self {
            Self::Algorithm(name) => vec![(name, None)],
            Self::Costs(costs) => costs.iter().map(|(name, cost)| (name, Some(cost))).collect(),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Algorithm(name) => f.write_str(name),
            Self::Costs(costs) => {
                let names: Vec<_> = costs.iter().map(|(name, _)| name).collect();
                write!(f, "the cheapest of {}", names.join(" | "))
            }
        }
    }
}

impl Costs {
    /// Algorithms in the order of their names, and their costs.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Expr)> {
        self.0.iter().map(|(name, cost)| (name.as_str(), cost))
    }

    /// The algorithm of least cost among those that `admits` lets through; of equal ones the first by name. `None` if none of
    /// them has a cost.
    ///
    /// # Errors
    ///
    /// [`CostError`] if the cost of one of them overflows, falls below 0, divides by zero or needs a dimension that is not stated.
    pub fn cheapest(
        &self,
        admits: impl Fn(&str) -> bool,
        dimensions: &Dimensions,
    ) -> Result<Option<&str>, CostError> {
        let mut best: Option<(u64, &str)> = None;
        for (algorithm, cost) in self.iter().filter(|(algorithm, _)| admits(algorithm)) {
            let nanoseconds = cost
                .eval(dimensions)
                .map_err(|source| CostError { algorithm: algorithm.to_owned(), source })?;
            if best.is_none_or(|(least, _)| nanoseconds < least) {
                best = Some((nanoseconds, algorithm));
            }
        }
        Ok(best.map(|(_, algorithm)| algorithm))
    }
}

impl<'de> Deserialize<'de> for Costs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(CostsVisitor)
    }
}

/// Refuses what a plain map would let pass: no entry at all, and one name twice.
struct CostsVisitor;

impl<'de> Visitor<'de> for CostsVisitor {
    type Value = Costs;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the cost of at least one algorithm")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Costs, A::Error> {
        let mut costs = BTreeMap::new();
        while let Some((algorithm, cost)) = entries.next_entry::<String, Expr>()? {
            if costs.contains_key(&algorithm) {
                return Err(A::Error::custom(format_args!("two costs of algorithm {algorithm}")));
            }
            costs.insert(algorithm, cost);
        }
        match costs.is_empty() {
            true => Err(A::Error::invalid_length(0, &self)),
            false => Ok(Costs(costs)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(json: &str) -> Result<Choice, serde_json::Error> {
        serde_json::from_str(json)
    }

    fn costs(json: &str) -> Costs {
        match parse(json).unwrap() {
            Choice::Costs(costs) => costs,
            other => panic!("{other:?}"),
        }
    }

    fn product(m: u64, n: u64, k: u64) -> Dimensions {
        [("m", m), ("n", n), ("k", k)].map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// A tile of 128 by 256 whose slice of 64 takes 900 ns, and one of 64 by 128 whose slice takes 300 ns.
    const TILES: &str = r#"{"costs": {
        "large": "2000 + ceil_div(ceil_div(m, 128) * ceil_div(n, 256), 132) * (1000 + 900 * ceil_div(k, 64))",
        "small": "2000 + ceil_div(ceil_div(m, 64) * ceil_div(n, 128), 132) * (500 + 300 * ceil_div(k, 64))"
    }}"#;

    #[test]
    fn the_cheapest_algorithm_depends_on_how_many_waves_the_tiles_make() {
        let costs = costs(TILES);
        let cheapest = |m, n| costs.cheapest(|_| true, &product(m, n, 1536)).unwrap();
        // 1 x 8 = 8 and 2 x 16 = 32 tiles, and 24 slices: one wave either way, 24,600 ns against 9,700 ns.
        assert_eq!(cheapest(128, 2048), Some("small"));
        // 16 x 8 = 128 and 32 x 16 = 512 tiles: 1 wave, 24,600 ns, against 4, 32,800 ns.
        assert_eq!(cheapest(2048, 2048), Some("large"));
        // 17 x 8 = 136 and 34 x 16 = 544 tiles: 2 waves, 47,200 ns, against 5, 40,500 ns.
        assert_eq!(cheapest(2176, 2048), Some("small"));
    }

    #[test]
    fn only_admitted_algorithms_are_evaluated_and_compared() {
        let costs = costs(r#"{"costs": {"a": "1 / (m - m)", "b": "m + 9", "c": "m + 8"}}"#);
        let dimensions = product(1, 1, 1);
        assert_eq!(costs.cheapest(|name| name != "a", &dimensions), Ok(Some("c")));
        assert_eq!(costs.cheapest(|name| name == "b", &dimensions), Ok(Some("b")));
        assert_eq!(costs.cheapest(|name| name == "d", &dimensions), Ok(None));
    }

    #[test]
    fn of_equal_costs_the_first_name_is_taken() {
        let costs = costs(r#"{"costs": {"b": "7", "a": "3 + 4", "c": "6 + 1"}}"#);
        assert_eq!(costs.cheapest(|_| true, &product(1, 1, 1)), Ok(Some("a")));
        assert_eq!(costs.cheapest(|name| name != "a", &product(1, 1, 1)), Ok(Some("b")));
    }

    #[test]
    fn a_cost_without_a_value_is_an_error_that_names_its_algorithm() {
        let costs = costs(r#"{"costs": {"a": "1", "b": "m * n * k", "c": "100 - m", "d": "rows"}}"#);
        let error = |name: &str, m: u64| {
            let cheapest =
                costs.cheapest(|other| other == "a" || other == name, &product(m, 1 << 31, 1 << 31));
            let error = cheapest.unwrap_err();
            assert_eq!(error.algorithm, name);
            error.source
        };
        assert!(matches!(error("b", 4), EvalError::OutOfRange { expr } if expr == "m * n * k"));
        assert!(matches!(error("c", 101), EvalError::OutOfRange { expr } if expr == "100 - m"));
        assert!(matches!(error("d", 1), EvalError::UnknownDimension { name, .. } if name == "rows"));
    }

    #[test]
    fn a_choice_has_one_form_exactly_and_costs_are_expressions() {
        assert_eq!(parse(r#"{"algorithm": "a"}"#).unwrap(), Choice::Algorithm("a".to_owned()));
        for (json, complaint) in [
            ("{}", "expected value"),
            (r#""algorithm""#, "newtype variant"),
            (r#"{"algorithm": "a", "costs": {"a": "1"}}"#, "expected value"),
            (r#"{"algorithm": null}"#, "expected a string"),
            (r#"{"costs": {}}"#, "the cost of at least one algorithm"),
            (r#"{"costs": ["a"]}"#, "the cost of at least one algorithm"),
            (r#"{"costs": {"a": "1", "a": "2"}}"#, "two costs of algorithm a"),
            (r#"{"costs": {"a": 1}}"#, "expected a string"),
            (r#"{"costs": {"a": "m **"}}"#, "expected a number, a name"),
            (r#"{"speed": "a"}"#, "unknown variant"),
        ] {
            let error = parse(json).unwrap_err().to_string();
            assert!(error.contains(complaint), "{json}: {error}");
        }
    }

    #[test]
    fn a_choice_is_written_as_it_is_read() {
        for json in [r#"{"algorithm":"a"}"#, r#"{"costs":{"a":"ceil_div(m, 8) + 1","b":"7"}}"#] {
            assert_eq!(serde_json::to_string(&parse(json).unwrap()).unwrap(), json);
        }
    }

    proptest! {
        #[test]
        fn the_cheapest_is_the_first_of_the_least_numbers(
            numbers in proptest::collection::btree_map("[a-f]{1,2}", 0u64..4, 1..8), mask in any::<u8>()
        ) {
            let costs = Costs(numbers.iter().map(|(name, n)| (name.clone(), Expr::parse(&n.to_string()).unwrap())).collect());
            let admits = |name: &str| mask >> (name.as_bytes()[0] % 8) & 1 == 1;
            let least = numbers.iter().filter(|(name, _)| admits(name)).map(|(name, n)| (n, name)).min();
            let cheapest = costs.cheapest(admits, &Dimensions::new()).unwrap();
            prop_assert_eq!(cheapest, least.map(|(_, name)| name.as_str()));
        }
    }
}
