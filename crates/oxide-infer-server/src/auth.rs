//! The API key check.

use crate::config::ApiKey;
use crate::error::ApiError;
use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

const X_API_KEY: &str = "x-api-key";

/// The hashes of the keys that open the API. Hashes have one length, so a comparison tells nothing about a key's.
#[derive(Debug)]
pub(crate) struct KeyRing {
    hashes: Vec<[u8; 32]>,
}

impl KeyRing {
    /// A ring of these keys; with none, everyone is let in.
    pub(crate) fn new(keys: &[ApiKey]) -> Self {
        Self { hashes: keys.iter().map(|key| hash(key.as_bytes())).collect() }
    }

    /// Lets a request in if it has one of the keys, in time that depends on neither.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.hashes.is_empty() {
            return Ok(());
        }
        let key = presented(headers).ok_or(ApiError::MissingApiKey)?;
        let presented = hash(key);
        let known = self.hashes.iter().fold(Choice::from(0), |known, hash| known | hash.ct_eq(&presented));
        if bool::from(known) { Ok(()) } else { Err(ApiError::WrongApiKey) }
    }
}

/// Whether a path is open only to those who have a key.
pub(crate) fn is_guarded(path: &str) -> bool {
    path == "/v1" || path.starts_with("/v1/") || path == "/tokenize" || path == "/detokenize"
}

/// The key that a request has, as OpenAI's clients send it or as Anthropic's do.
fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    match headers.get(header::AUTHORIZATION) {
        Some(value) => bearer(value.as_bytes()),
        None => headers.get(X_API_KEY).map(|value| value.as_bytes().trim_ascii()),
    }
}

/// The key in `Bearer KEY`.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key.trim_ascii())
}

fn hash(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn check(keys: &[&str], header: Option<&'static str>) -> Result<(), ApiError> {
        let keys: Vec<ApiKey> = keys.iter().map(|key| ApiKey::new(*key)).collect();
        let mut headers = HeaderMap::new();
        if let Some(value) = header {
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static(value));
        }
        KeyRing::new(&keys).check(&headers)
    }

    #[test]
    fn without_keys_everyone_is_let_in() {
        assert_eq!(check(&[], None), Ok(()));
    }

    #[test]
    fn each_of_several_keys_opens_and_the_scheme_has_no_case() {
        assert_eq!(check(&["one", "two"], Some("Bearer one")), Ok(()));
        assert_eq!(check(&["one", "two"], Some("bearer two")), Ok(()));
    }

    #[test]
    fn a_prefix_an_extension_and_another_key_are_wrong() {
        for header in ["Bearer on", "Bearer one1", "Bearer ", "Bearer three"] {
            assert_eq!(check(&["one"], Some(header)), Err(ApiError::WrongApiKey), "{header}");
        }
    }

    #[test]
    fn no_header_and_another_scheme_are_a_missing_key() {
        assert_eq!(check(&["one"], None), Err(ApiError::MissingApiKey));
        assert_eq!(check(&["one"], Some("Basic one")), Err(ApiError::MissingApiKey));
    }

    #[test]
    fn the_header_of_anthropics_clients_opens_beside_the_other() {
        let ring = KeyRing::new(&[ApiKey::new("one")]);
        let with = |headers: &[(&'static str, &'static str)]| {
            let headers =
                headers.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
            ring.check(&headers.collect())
        };
        assert_eq!(with(&[("x-api-key", "one")]), Ok(()));
        assert_eq!(with(&[("x-api-key", "two")]), Err(ApiError::WrongApiKey));
        // A bearer counts first.
        assert_eq!(
            with(&[("x-api-key", "one"), ("authorization", "Bearer two")]),
            Err(ApiError::WrongApiKey)
        );
    }

    #[test]
    fn only_the_api_and_tokenization_are_guarded() {
        for path in ["/v1/models", "/v1/chat/completions", "/v1", "/v1/nothing", "/tokenize", "/detokenize"] {
            assert!(is_guarded(path), "{path}");
        }
        for path in ["/health", "/ready", "/metrics", "/version", "/openapi.json", "/", "/v11"] {
            assert!(!is_guarded(path), "{path}");
        }
    }
}
