//! Numbers in JSON schemas: those that the compiler cannot compute with, or whose automaton would be too large, are
//! refused here, before anything is compiled.
//!
//! The automaton of a `multipleOf` has a state for each remainder. Where several apply to one number, it has as many as
//! their least common multiple.

use super::schema::{shorten, subschemas};
use serde_json::{Map, Value};
use std::collections::{HashSet, VecDeque};

/// The largest `multipleOf`, in units of its last decimal place.
const MAX_MULTIPLE: u64 = 10_000;

/// The most decimal places of a `multipleOf`: the compiler computes with nine times ten to this power as a `u32`.
const MAX_PLACES: u32 = 8;

/// Bounds have to lie between its negative and it, 2^53: up to there each whole number is a float of its own.
const MAX_BOUND: f64 = 9_007_199_254_740_992.0;

const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];

/// Keywords that may stand beside a reference or alternatives without adding a restriction.
const ANNOTATIONS: [&str; 11] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "examples",
    "title",
];

/// The sum of all different multiples of a schema, which bounds the states of all automata: a second's work.
const MAX_MULTIPLES: u64 = 100_000;

/// Schemas that are visited to find which multiples meet; after that all of the schema are taken to.
const MAX_VISITS: usize = 200_000;

/// Checks the numbers of a schema whose references are resolved.
///
/// # Errors
/// A bound or a `multipleOf` is too large, or several `multipleOf` that may apply to one number are together.
pub(super) fn check(root: &Value) -> Result<(), String> {
    let (mut all, mut combined) = (Vec::new(), Vec::new());
    reach(root, root, "#", &mut |place, keywords| {
        let at = |reason: String| format!("{reason} at {}", shorten(place));
        check_bounds(keywords).map_err(at)?;
        let multiple = Multiple::of(keywords).map_err(at)?;
        all.extend(multiple);
        if combines(keywords) {
            combined.push((place.to_owned(), keywords));
        }
        Ok(())
    })?;
    if least_common(&all).is_some() {
        return Ok(());
    }
    let mut visits = 0;
    let mut sizes: HashSet<Multiple> = all.iter().copied().collect();
    for (place, keywords) in combined {
        let meeting = match visits < MAX_VISITS {
            true => multiples_in(root, keywords, &mut visits)?,
            false => all.clone(),
        };
        let Some(common) = least_common(&meeting) else {
            return Err(format!(
                "has several 'multipleOf' that may apply to one number, whose least common multiple is more than \
                 {MAX_MULTIPLE} units of their last decimal place, at {}",
                shorten(&place)
            ));
        };
        sizes.insert(common);
    }
    match sizes.iter().map(|multiple| multiple.units).sum::<u64>() {
        0..=MAX_MULTIPLES => Ok(()),
        sum => Err(format!("has different 'multipleOf' whose sum is {sum}, more than {MAX_MULTIPLES}")),
    }
}

/// A `multipleOf`: `units` times ten to the power of minus `places`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Multiple {
    units: u64,
    places: u32,
}

impl Multiple {
    fn of(keywords: &Map<String, Value>) -> Result<Option<Self>, String> {
        // What is no number is the compiler's to refuse.
        let Some(value) = keywords.get("multipleOf") else { return Ok(None) };
        let Some(number) = value.as_f64() else { return Ok(None) };
        if number <= 0.0 {
            return Err(format!("has the 'multipleOf' {value}, which is not above 0,"));
        }
        Self::from_number(number).map(Some).ok_or_else(|| {
            format!(
                "has the 'multipleOf' {value}, which is more than {MAX_MULTIPLE} units of its last decimal place or has \
                 more than {MAX_PLACES} places,"
            )
        })
    }

    /// Scales as the compiler does, whose rounding decides how many places there are.
    fn from_number(number: f64) -> Option<Self> {
        let (mut scaled, mut places) = (number, 0);
        while scaled.fract() != 0.0 && places < MAX_PLACES {
            scaled *= 10.0;
            places += 1;
        }
        let is_kept = scaled.fract() == 0.0 && scaled <= MAX_MULTIPLE as f64;
        is_kept.then_some(Self { units: scaled as u64, places })
    }
}

/// The least common multiple in units of the last decimal place of all, unless it is too large. 1 if there are none.
fn least_common(multiples: &[Multiple]) -> Option<Multiple> {
    let places = multiples.iter().map(|multiple| multiple.places).max().unwrap_or(0);
    let units = multiples.iter().try_fold(1, |common: u64, multiple| {
        // At most 10^4 · 10^8, and times 10^4 below: far from overflow.
        let units = multiple.units * 10_u64.pow(places - multiple.places);
        let common = common / greatest_common(common, units) * units;
        (common <= MAX_MULTIPLE).then_some(common)
    })?;
    Some(Multiple { units, places })
}

fn greatest_common(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common(b, a % b) }
}

fn check_bounds(keywords: &Map<String, Value>) -> Result<(), String> {
    let is_far = |value: &Value| value.as_f64().is_some_and(|bound| bound.abs() > MAX_BOUND);
    match BOUNDS
        .iter()
        .find_map(|name| keywords.get(*name).filter(|value| is_far(value)).map(|value| (name, value)))
    {
        Some((name, value)) => Err(format!("has the '{name}' {value}, which is not between -2^53 and 2^53,")),
        None => Ok(()),
    }
}

/// Whether several schemas in it, or it and others, may apply to the same value.
fn combines(keywords: &Map<String, Value>) -> bool {
    let has = |names: &[&str]| names.iter().any(|name| keywords.contains_key(*name));
    let is_alone = |name: &str| keywords.keys().all(|key| key == name || ANNOTATIONS.contains(&key.as_str()));
    has(&["allOf", "patternProperties"])
        || ["$ref", "anyOf", "oneOf"].iter().any(|name| has(&[name]) && !is_alone(name))
}

/// All multiples in a schema and in what it refers to, but for what is only defined there.
fn multiples_in(
    root: &Value,
    keywords: &Map<String, Value>,
    visits: &mut usize,
) -> Result<Vec<Multiple>, String> {
    let mut without_definitions = keywords.clone();
    without_definitions.retain(|name, _| !ANNOTATIONS.contains(&name.as_str()));
    let mut found = Vec::new();
    reach(root, &Value::Object(without_definitions), "#", &mut |_, keywords| {
        *visits += 1;
        found.extend(Multiple::of(keywords)?);
        Ok(())
    })?;
    Ok(found)
}

/// Visits a schema, the schemas inside it and those that they refer to, each once.
fn reach<'a>(
    root: &'a Value,
    start: &'a Value,
    place: &str,
    visit: &mut impl FnMut(&str, &'a Map<String, Value>) -> Result<(), String>,
) -> Result<(), String> {
    let mut waiting = VecDeque::from([(place.to_owned(), start)]);
    let mut seen = HashSet::new();
    while let Some((place, schema)) = waiting.pop_front() {
        let Some(keywords) = schema.as_object().filter(|_| seen.insert(std::ptr::from_ref(schema))) else {
            continue;
        };
        visit(&place, keywords)?;
        waiting.extend(subschemas(schema).into_iter().map(|(path, inner)| (path.below(&place), inner)));
        waiting.extend(target(root, keywords));
    }
    Ok(())
}

/// What a schema refers to, and its place. References are pointers without escapes by now.
fn target<'a>(root: &'a Value, keywords: &Map<String, Value>) -> Option<(String, &'a Value)> {
    let reference = keywords.get("$ref")?.as_str()?;
    Some((reference.to_owned(), root.pointer(reference.strip_prefix('#')?)?))
}

/// Refuses references that lead back to themselves without a value in between.
///
/// # Errors
/// Names the place of such a reference.
pub(super) fn check_cycles(root: &Value) -> Result<(), String> {
    let mut referring = Vec::new();
    reach(root, root, "#", &mut |place, keywords| {
        if keywords.contains_key("$ref") {
            referring.push((place.to_owned(), keywords));
        }
        Ok(())
    })?;
    let mut ends = HashSet::new();
    for (place, keywords) in referring {
        let (mut chain, mut next) = (HashSet::new(), Some(keywords));
        while let Some(keywords) = next.filter(|keywords| !ends.contains(&std::ptr::from_ref(*keywords))) {
            if !chain.insert(std::ptr::from_ref(keywords)) {
                return Err(format!("has a reference that leads back to itself at {}", shorten(&place)));
            }
            next = target(root, keywords).and_then(|(_, schema)| schema.as_object());
        }
        ends.extend(chain);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn error(schema: Value) -> String {
        check(&schema).unwrap_err()
    }

    #[test]
    fn a_multiple_counts_in_units_of_its_last_decimal_place() {
        let multiple = |number| Multiple::from_number(number).map(|it| (it.units, it.places));
        assert_eq!(multiple(7.0), Some((7, 0)));
        assert_eq!(multiple(0.25), Some((25, 2)));
        assert_eq!(multiple(10_000.0), Some((10_000, 0)));
        assert_eq!(multiple(10_001.0), None);
        assert_eq!(multiple(1_000.5), None);
        assert_eq!(multiple(1e-8), Some((1, 8)));
        assert_eq!(multiple(1e-300), None);
    }

    #[test]
    fn a_multiple_that_is_too_large_is_named_with_its_place() {
        for value in
            [json!(4_000_037), json!(10_001), json!(2_147_483_648_u64), json!(1e300), json!(0), json!(-2)]
        {
            let message = error(json!({"properties": {"a": {"multipleOf": value}}}));
            assert!(message.contains(&format!("'multipleOf' {value}")), "{message}");
            assert!(message.ends_with("at #/properties/a"), "{message}");
        }
    }

    #[test]
    fn a_schema_that_is_only_referred_to_is_checked_too() {
        let message = error(json!({"$ref": "#/x/y", "x": {"y": {"multipleOf": 10_001}}}));
        assert!(message.ends_with("at #/x/y"), "{message}");
    }

    #[test]
    fn multiples_of_one_number_are_taken_together() {
        // 101 · 103 = 10403; 96 and 60 have 480; 0.25 and 500 have 50000 hundredths.
        let (small, large) = (
            json!([{"multipleOf": 96}, {"multipleOf": 60}]),
            json!([{"multipleOf": 101}, {"multipleOf": 103}]),
        );
        assert_eq!(check(&json!({"allOf": small})), Ok(()));
        assert!(error(json!({"items": {"allOf": large}})).ends_with("at #/items"));
        assert!(error(json!({"allOf": [{"multipleOf": 0.25}, {"multipleOf": 500}]})).contains("multipleOf"));
        assert!(
            error(json!({"allOf": [{"multipleOf": 65_536}, {"multipleOf": 65_537}]}))
                .ends_with("at #/allOf/0")
        );
        let below = json!({"multipleOf": 101, "anyOf": [{"type": "null"}, {"multipleOf": 103}]});
        assert!(error(below).ends_with("at #"));
        let beside =
            json!({"$defs": {"a": {"multipleOf": 101}}, "items": {"$ref": "#/$defs/a", "multipleOf": 103}});
        assert!(error(beside).ends_with("at #/items"));
        let nested = json!({"allOf": [
            {"properties": {"a": {"multipleOf": 101}}},
            {"properties": {"a": {"multipleOf": 103}}},
        ]});
        assert!(error(nested).ends_with("at #"));
    }

    #[test]
    fn multiples_that_do_not_meet_stand_alone() {
        let numbers = json!([{"multipleOf": 9973}, {"multipleOf": 9967}]);
        assert_eq!(check(&json!({"prefixItems": numbers})), Ok(()));
        assert_eq!(check(&json!({"anyOf": numbers, "description": "either"})), Ok(()));
        let defined = json!({"$defs": {"a": {"multipleOf": 9973}, "b": {"multipleOf": 9967}}, "allOf": [{"$ref": "#/$defs/a"}]});
        assert_eq!(check(&defined), Ok(()));
    }

    #[test]
    fn the_sum_of_different_multiples_is_bounded() {
        // 10000 + 9999 + … + 9991 = 99955, and 45 more make 100000.
        let numbers = |last: u64| -> Vec<Value> {
            (9_991..=10_000).chain([last]).map(|value| json!({"multipleOf": value})).collect()
        };
        assert_eq!(check(&json!({"prefixItems": numbers(45)})), Ok(()));
        assert!(error(json!({"prefixItems": numbers(46)})).contains("100001"));
    }

    #[test]
    fn bounds_lie_where_each_whole_number_is_a_float() {
        // 2^53 = 9007199254740992.
        assert_eq!(
            check(&json!({"minimum": -9_007_199_254_740_992_i64, "maximum": 9_007_199_254_740_992_i64})),
            Ok(())
        );
        for name in BOUNDS {
            for value in [json!(i64::MIN), json!(9_007_199_254_740_994_i64), json!(1e300)] {
                let message = error(json!({"items": {*name: value}}));
                assert!(message.contains(&format!("'{name}' {value}")), "{message}");
                assert!(message.ends_with("at #/items"), "{message}");
            }
        }
    }

    #[test]
    fn a_reference_that_leads_back_to_itself_is_named() {
        let message = check_cycles(&json!({"$ref": "#"})).unwrap_err();
        assert_eq!(message, "has a reference that leads back to itself at #");
        let two = json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}});
        assert!(check_cycles(&two).unwrap_err().ends_with("at #/$defs/a"));
        let tree = json!({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"});
        assert_eq!(check_cycles(&tree), Ok(()));
    }
}
