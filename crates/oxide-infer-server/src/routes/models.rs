//! `/v1/models`.

use crate::app::App;
use crate::error::ApiError;
use crate::protocol::response::{ModelCard, ModelList};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use std::sync::Arc;

/// `GET /v1/models`.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<ModelList> {
    let names = &app.config().served_model_names;
    Json(ModelList { object: "list", data: names.iter().map(|name| card(&app, name)).collect() })
}

/// `GET /v1/models/{id}`; ids may have slashes.
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    uri: Uri,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelCard>, ApiError> {
    // Not UTF-8 once it is decoded, so no name of a model: it is looked for as it was sent.
    let id = id.map_or_else(|_| uri.path().to_owned(), |Path(id)| id);
    app.check_model(Some(&id))?;
    Ok(Json(card(&app, &id)))
}

fn card(app: &App, name: &str) -> ModelCard {
    ModelCard {
        id: name.to_owned(),
        object: "model",
        created: app.started(),
        owned_by: "oxide-infer",
        root: app.config().model_source.clone(),
        parent: None,
        max_model_len: app.engine().limits().max_model_len,
    }
}
