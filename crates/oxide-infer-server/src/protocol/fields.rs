//! Reads the fields of a request one by one, so that every error names its field and nothing is dropped unread.

use super::rules::{self, Handling, Route};
use crate::error::ApiError;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;
use std::ops::RangeInclusive;

/// The fields of one JSON object that have not been read yet.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    /// The route whose body it is; `None` inside the body.
    route: Option<Route>,
    /// What comes before a field's name in `param`: empty, or `messages[2].`.
    prefix: String,
    unread: Vec<(String, &'a RawValue)>,
}

impl<'a> Fields<'a> {
    /// The fields of a request's body. Of these only what the route accepts is read.
    pub(crate) fn parse_body(body: &'a [u8], route: Route) -> Result<Self, ApiError> {
        let text = std::str::from_utf8(body)
            .map_err(|error| ApiError::InvalidJson(format!("it is not UTF-8: {error}")))?;
        let raw: &RawValue =
            serde_json::from_str(text).map_err(|error| ApiError::InvalidJson(error.to_string()))?;
        let fields = Self::parse(raw, "body", String::new())?;
        Ok(Self { route: Some(route), ..fields })
    }

    /// Reads on as another route, which the body turned out to be meant for.
    pub(crate) fn reroute(&mut self, route: Route) {
        self.route = Some(route);
    }

    /// The fields of an object inside the body; `param` names it.
    pub(crate) fn parse_at(raw: &'a RawValue, param: &str) -> Result<Self, ApiError> {
        Self::parse(raw, param, format!("{param}."))
    }

    fn parse(raw: &'a RawValue, object: &str, prefix: String) -> Result<Self, ApiError> {
        if !raw.get().starts_with('{') {
            return Err(wrong_type(object, "an object", raw));
        }
        let Entries(unread) =
            serde_json::from_str(raw.get()).map_err(|error| ApiError::InvalidJson(error.to_string()))?;
        let fields = Self { route: None, prefix, unread };
        fields.refuse_duplicates()?;
        Ok(fields)
    }

    fn refuse_duplicates(&self) -> Result<(), ApiError> {
        let mut names: Vec<&str> = self.unread.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(self.invalid(pair[0], "is given twice")),
            None => Ok(()),
        }
    }

    /// A field's name as `param` shows it.
    pub(crate) fn param(&self, name: &str) -> String {
        // A name that is empty must be seen, too.
        let name = if name.is_empty() { "\"\"".to_owned() } else { shorten(name) };
        format!("{}{name}", self.prefix)
    }

    /// The error of a field whose value is not allowed.
    pub(crate) fn invalid(&self, name: &str, reason: impl Into<String>) -> ApiError {
        ApiError::InvalidValue { param: self.param(name), reason: reason.into() }
    }

    /// The error of a field that is needed and absent.
    pub(crate) fn missing(&self, name: &str, expected: &str) -> ApiError {
        ApiError::MissingField { param: self.param(name), expected: expected.to_owned() }
    }

    /// Whether a field is still to be read and not null.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.peek(name).is_some()
    }

    /// Whether the route accepts a field; inside of the body all are.
    pub(crate) fn admits(&self, name: &str) -> bool {
        self.route.is_none_or(|route| rules::handling(route, name) == Some(Handling::Accepted))
    }

    /// Takes a field; `None` if it is absent or null, or not for this route: then it is left for [`Self::finish`].
    pub(crate) fn take(&mut self, name: &str) -> Option<&'a RawValue> {
        if !self.admits(name) {
            return None;
        }
        let at = self.unread.iter().position(|(unread, _)| unread == name)?;
        let (_, raw) = self.unread.swap_remove(at);
        (raw.get() != "null").then_some(raw)
    }

    /// A field that stays unread; `None` if it is absent or null.
    pub(crate) fn peek(&self, name: &str) -> Option<&'a RawValue> {
        let (_, raw) = self.unread.iter().find(|(unread, _)| unread == name)?;
        (raw.get() != "null").then_some(*raw)
    }

    /// Takes a field of any type that serde reads; `expected` describes it to a person.
    pub(crate) fn typed<T: Deserialize<'a>>(
        &mut self,
        name: &str,
        expected: &str,
    ) -> Result<Option<T>, ApiError> {
        let Some(raw) = self.take(name) else { return Ok(None) };
        read(raw).ok_or_else(|| wrong_type(&self.param(name), expected, raw)).map(Some)
    }

    /// Takes a boolean.
    pub(crate) fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "true or false")
    }

    /// Takes a string.
    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.typed(name, "a string")
    }

    /// Takes a string that names one of several values.
    pub(crate) fn one_of<T: Copy>(
        &mut self,
        name: &str,
        values: &[(&str, T)],
    ) -> Result<Option<T>, ApiError> {
        let Some(given) = self.string(name)? else { return Ok(None) };
        match values.iter().find(|(value, _)| *value == given) {
            Some((_, value)) => Ok(Some(*value)),
            None => {
                let names = values.iter().map(|(value, _)| format!("'{value}'")).collect::<Vec<_>>();
                let reason = format!("must be {}, got '{}'", names.join(" or "), shorten(&given));
                Err(self.invalid(name, reason))
            }
        }
    }

    /// Takes a number in `range`.
    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<f32>) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.typed::<f64>(name, "a number")? else { return Ok(None) };
        let (low, high) = range.into_inner();
        if !(f64::from(low)..=f64::from(high)).contains(&value) {
            return Err(self.invalid(name, format!("must be from {low} to {high}, got {value}")));
        }
        Ok(Some(value as f32))
    }

    /// Takes a whole number in `range`.
    pub(crate) fn integer(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let Some(raw) = self.take(name) else { return Ok(None) };
        let value = whole_number(raw).ok_or_else(|| wrong_type(&self.param(name), "a whole number", raw))?;
        if !range.contains(&value) {
            let (low, high) = range.into_inner();
            return Err(self.invalid(name, format!("must be from {low} to {high}, got {value}")));
        }
        Ok(Some(value))
    }

    /// Takes a whole number that fits the range of `u32`, not above `max` and not below `min`.
    pub(crate) fn count(&mut self, name: &str, min: u32, max: u32) -> Result<Option<u32>, ApiError> {
        let value = self.integer(name, i64::from(min)..=i64::from(max))?;
        Ok(value.and_then(|value| u32::try_from(value).ok()))
    }

    /// Takes a field that is not supported; only null and `neutral` JSON values, which ask for nothing, are let through.
    pub(crate) fn refuse(&mut self, name: &str, neutral: &[&str], instead: &str) -> Result<(), ApiError> {
        match self.take(name) {
            Some(raw) if !is_neutral(raw, neutral) => Err(self.unsupported(name, instead)),
            _ => Ok(()),
        }
    }

    /// The error of a field that is not supported, or of a value of it.
    pub(crate) fn unsupported(&self, name: &str, instead: impl Into<String>) -> ApiError {
        ApiError::UnsupportedField { param: self.param(name), reason: instead.into() }
    }

    /// Ends the reading: what is left must be known to have no effect.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        for (name, raw) in &self.unread {
            match self.route.and_then(|route| rules::handling(route, name)) {
                Some(Handling::Ignored) => {}
                Some(Handling::Unsupported { neutral, instead }) => {
                    if !is_neutral(raw, neutral) {
                        return Err(self.unsupported(name, instead));
                    }
                }
                Some(Handling::Accepted) | None => {
                    if raw.get() != "null" {
                        return Err(ApiError::UnknownField { param: self.param(name) });
                    }
                }
            }
        }
        Ok(())
    }
}

/// Reads a value, or `None` if it is of another type.
pub(crate) fn read<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Option<T> {
    serde_json::from_str(raw.get()).ok()
}

/// A whole number, also when it is written as `16.0`.
pub(crate) fn whole_number(raw: &RawValue) -> Option<i64> {
    if let Some(value) = read::<i64>(raw) {
        return Some(value);
    }
    let value = read::<f64>(raw)?;
    // 2^53: beyond it a float no longer names one whole number.
    (value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0).then_some(value as i64)
}

/// The error of a value of another type than `expected`.
pub(crate) fn wrong_type(param: &str, expected: &str, raw: &RawValue) -> ApiError {
    ApiError::InvalidType { param: param.to_owned(), expected: expected.to_owned(), got: shorten(raw.get()) }
}

/// What a client sent, short enough to be sent back in an error.
pub(crate) fn shorten(text: &str) -> String {
    const SHOWN: usize = 80;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Whether a value that is not supported says what would happen without it.
fn is_neutral(raw: &RawValue, neutral: &[&str]) -> bool {
    if raw.get() == "null" {
        return true;
    }
    let value = read::<serde_json::Value>(raw);
    neutral.iter().any(|text| serde_json::from_str::<serde_json::Value>(text).ok() == value)
}

/// The entries of an object in order, duplicates included.
struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;
        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(EntriesVisitor)
    }
}
