//! Routes, and what lies around all of them.

use crate::app::App;
use crate::auth::is_guarded;
use crate::config::Cors;
use crate::error::ApiError;
use crate::observe::{Arrival, REQUEST_ID, observe};
use crate::operations::operations;
use crate::protocol::fields::shorten;
use crate::protocol::messages::response::MessageError;
use axum::extract::{Request, State};
use axum::http::{Method, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// The whole service.
pub(crate) fn build(app: Arc<App>) -> Router {
    let routes = operations(app.config().page)
        .fold(Router::new(), |router, operation| router.route(operation.path, operation.method_router()));
    let router = routes
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn_with_state(app.clone(), guard))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(speak_anthropic));
    let router = match cors_layer(&app.config().cors) {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router.layer(from_fn_with_state(app.clone(), observe)).with_state(app)
}

/// Lets only those who have a key through to the API, and nobody while the server drains.
async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response, ApiError> {
    if is_guarded(request.uri().path()) {
        app.keys().check(request.headers())?;
        if app.is_draining() {
            return Err(ApiError::Draining);
        }
    }
    Ok(next.run(request).await)
}

/// Tells the errors of Anthropic's routes in Anthropic's form.
async fn speak_anthropic(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_anthropic = path == "/v1/messages" || path.starts_with("/v1/messages/");
    let id = request.extensions().get::<Arrival>().map(|arrival| arrival.id.to_string());
    let response = next.run(request).await;
    let Some(error) = response.extensions().get::<ApiError>().filter(|_| is_anthropic) else {
        return response;
    };
    let body = Json(MessageError::new(error, id)).into_response();
    let (mut head, _) = response.into_parts();
    head.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(head, body.into_body())
}

async fn no_route(request: Request) -> ApiError {
    ApiError::no_route(&request)
}

async fn no_method(request: Request) -> ApiError {
    ApiError::MethodNotAllowed { method: request.method().clone(), path: shorten(request.uri().path()) }
}

/// A handler panicked: a fault of ours that must not take the other requests with it.
fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let message = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
    tracing::error!(message = message.as_deref().unwrap_or("no message"), "a handler panicked");
    ApiError::Internal("the request could not be handled; the log has more".to_owned()).into_response()
}

fn cors_layer(cors: &Cors) -> Option<CorsLayer> {
    let origins = match cors {
        Cors::Off => return None,
        Cors::AnyOrigin => AllowOrigin::any(),
        Cors::Origins(origins) => AllowOrigin::list(origins.iter().cloned()),
    };
    let layer = CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([REQUEST_ID])
        .max_age(Duration::from_secs(600));
    Some(layer)
}
