//! What a client is told when a request cannot be served.

use crate::protocol::fields::shorten;
use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::time::Duration;

/// Every way in which a request fails, with the status, `type`, `param` and `code` of OpenAI's error object.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ApiError {
    /// The body is not JSON.
    #[error("the body is not valid JSON: {0}")]
    InvalidJson(String),
    /// A field that is needed is absent or null.
    #[error("'{param}' is required: {expected}")]
    MissingField {
        /// The field.
        param: String,
        /// What it should be.
        expected: String,
    },
    /// A field has a value of another type.
    #[error("'{param}' must be {expected}, got {got}")]
    InvalidType {
        /// The field.
        param: String,
        /// What it should be.
        expected: String,
        /// The value, shortened.
        got: String,
    },
    /// A field's value is not allowed.
    #[error("'{param}' {reason}")]
    InvalidValue {
        /// The field.
        param: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No such field.
    #[error("'{param}' is not a field of this request")]
    UnknownField {
        /// The field.
        param: String,
    },
    /// A field, or a value of it, that other servers know and this one does not support yet.
    #[error("'{param}' is not supported yet: {reason}")]
    UnsupportedField {
        /// The field.
        param: String,
        /// What could be sent instead.
        reason: String,
    },
    /// Prompt and answer do not fit the model.
    #[error("{message}")]
    ContextLength {
        /// The field that is too large.
        param: String,
        /// The numbers.
        message: String,
    },
    /// No model of that name is served.
    #[error("the model '{model}' does not exist; this server has {served}")]
    ModelNotFound {
        /// The name that was asked for.
        model: String,
        /// The names there are.
        served: String,
    },
    /// The request has no API key.
    #[error("an API key is needed: send it in the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'")]
    MissingApiKey,
    /// The request's API key is none of the server's.
    #[error("the API key is not valid")]
    WrongApiKey,
    /// No such route.
    #[error("there is no route {method} {path}")]
    RouteNotFound {
        /// The method.
        method: Method,
        /// The path.
        path: String,
    },
    /// The route exists, for another method.
    #[error("the route {path} does not take {method}")]
    MethodNotAllowed {
        /// The method.
        method: Method,
        /// The path.
        path: String,
    },
    /// The body did not arrive in time.
    #[error("the body did not arrive within {seconds} s")]
    BodyTimeout {
        /// The limit.
        seconds: u64,
    },
    /// The connection broke while the body was read.
    #[error("the body could not be read: {0}")]
    BodyBroken(String),
    /// The body is too large.
    #[error("the body is larger than {limit} bytes")]
    BodyTooLarge {
        /// The limit.
        limit: usize,
    },
    /// The body is said not to be JSON.
    #[error("the body must be JSON with the header 'Content-Type: application/json', got {got}")]
    UnsupportedMediaType {
        /// The content type.
        got: String,
    },
    /// Too many requests wait.
    #[error("the server is busy: {reason}; try again later")]
    Busy {
        /// What there is too much of.
        reason: String,
        /// When it makes sense to try again.
        retry_after: Duration,
    },
    /// The server is shutting down.
    #[error("the server is shutting down and takes no new requests")]
    Draining,
    /// The server is shutting down and had no more time for the answer.
    #[error("the server is shutting down: the answer was not complete when the drain's time was up")]
    CutOff,
    /// The engine has failed.
    #[error("the engine has failed: {0}")]
    EngineFailed(String),
    /// A fault of the server.
    #[error("internal error: {0}")]
    Internal(String),
}

impl ApiError {
    /// That there is no route for a request.
    pub(crate) fn no_route(request: &Request) -> Self {
        Self::RouteNotFound { method: request.method().clone(), path: shorten(request.uri().path()) }
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::InvalidJson(_)
            | Self::MissingField { .. }
            | Self::InvalidType { .. }
            | Self::InvalidValue { .. }
            | Self::UnknownField { .. }
            | Self::UnsupportedField { .. }
            | Self::ContextLength { .. }
            | Self::BodyBroken(_) => StatusCode::BAD_REQUEST,
            Self::MissingApiKey | Self::WrongApiKey => StatusCode::UNAUTHORIZED,
            Self::ModelNotFound { .. } | Self::RouteNotFound { .. } => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::BodyTimeout { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType { .. } => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Draining | Self::CutOff | Self::EngineFailed(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// `type` of the error object: a class that clients can branch on.
    pub fn kind(&self) -> &'static str {
        match self.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable_error",
            StatusCode::INTERNAL_SERVER_ERROR => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// `code` of the error object.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidJson(_) => "invalid_json",
            Self::MissingField { .. } => "missing_required_parameter",
            Self::InvalidType { .. } => "invalid_type",
            Self::InvalidValue { .. } => "invalid_value",
            Self::UnknownField { .. } => "unknown_parameter",
            Self::UnsupportedField { .. } => "unsupported_parameter",
            Self::ContextLength { .. } => "context_length_exceeded",
            Self::ModelNotFound { .. } => "model_not_found",
            Self::MissingApiKey => "missing_api_key",
            Self::WrongApiKey => "invalid_api_key",
            Self::RouteNotFound { .. } => "unknown_url",
            Self::MethodNotAllowed { .. } => "method_not_allowed",
            Self::BodyTimeout { .. } => "body_timeout",
            Self::BodyBroken(_) => "body_incomplete",
            Self::BodyTooLarge { .. } => "request_too_large",
            Self::UnsupportedMediaType { .. } => "unsupported_media_type",
            Self::Busy { .. } => "rate_limit_exceeded",
            Self::Draining | Self::CutOff => "shutting_down",
            Self::EngineFailed(_) => "engine_failed",
            Self::Internal(_) => "internal_error",
        }
    }

    /// `param` of the error object: the field that is wrong.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::MissingField { param, .. }
            | Self::InvalidType { param, .. }
            | Self::InvalidValue { param, .. }
            | Self::UnknownField { param }
            | Self::UnsupportedField { param, .. }
            | Self::ContextLength { param, .. } => Some(param),
            Self::ModelNotFound { .. } => Some("model"),
            _ => None,
        }
    }

    /// The error object.
    pub(crate) fn body(&self) -> ErrorBody {
        let error = ErrorObject {
            message: self.to_string(),
            kind: self.kind(),
            param: self.param().map(str::to_owned),
            code: self.code(),
        };
        ErrorBody { error }
    }

    /// Seconds after which it makes sense to try again.
    fn retry_after(&self) -> Option<HeaderValue> {
        match self {
            // Whole seconds, at least one.
            Self::Busy { retry_after, .. } => Some(retry_after.as_secs().saturating_add(1).min(3600).into()),
            Self::Draining | Self::CutOff => Some(5.into()),
            _ => None,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(self.body())).into_response();
        // For APIs that tell errors in another form.
        response.extensions_mut().insert(self.clone());
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after() {
            headers.insert(header::RETRY_AFTER, seconds);
        }
        if self.status() == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// `{"error": {…}}`.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorBody {
    error: ErrorObject,
}

#[derive(Debug, Serialize)]
struct ErrorObject {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<String>,
    code: &'static str,
}
