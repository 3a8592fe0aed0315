//! What happens around every request: its id, its log lines, its counts.

use crate::app::App;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;
use std::time::Instant;
use tracing::Instrument;

/// The header that carries a request's id both ways.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What a handler knows of its request's arrival.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    /// The request's id: the client's, or a new one.
    pub(crate) id: Arc<str>,
    /// When its head had been read.
    pub(crate) at: Instant,
}

/// Names a request, logs it, counts it, and returns its id.
pub(crate) async fn observe(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let arrival = Arrival { id: request_id(request.headers()), at: Instant::now() };
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let span = tracing::info_span!("request", id = %arrival.id, %method, path = %request.uri().path());
    request.extensions_mut().insert(arrival.clone());
    async {
        let mut response = next.run(request).await;
        let took = arrival.at.elapsed();
        let route = route.as_ref().map_or("none", MatchedPath::as_str);
        app.metrics().http.observe(&method, route, response.status(), took);
        if route.starts_with("/v1/") || response.status().as_u16() >= 400 {
            tracing::info!(status = response.status().as_u16(), seconds = took.as_secs_f64(), "answered");
        } else {
            tracing::debug!(status = response.status().as_u16(), seconds = took.as_secs_f64(), "answered");
        }
        if let Ok(id) = HeaderValue::from_str(&arrival.id) {
            response.headers_mut().insert(REQUEST_ID, id);
        }
        response
    }
    .instrument(span)
    .await
}

/// The client's id if it can be logged and sent back as it is, else a new one.
fn request_id(headers: &HeaderMap) -> Arc<str> {
    const LONGEST: usize = 128;
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let usable =
        |id: &&str| !id.is_empty() && id.len() <= LONGEST && id.bytes().all(|byte| byte.is_ascii_graphic());
    match given.filter(usable) {
        Some(id) => id.into(),
        None => uuid::Uuid::new_v4().simple().to_string().into(),
    }
}
