//! `/v1/chat/completions`, `/v1/completions`, `/v1/messages` and `/v1/responses`.

use super::{output, with_body};
use crate::app::{App, InFlight, unix_time};
use crate::error::ApiError;
use crate::generate::{
    ChatFormat, ChunkWriter, CompletionFormat, Format, Generation, Job, MessageHead, MessageWriter,
    OutputPlan, PreparedPrompt, ResponseHead, ResponseWriter, respond_streaming, respond_whole,
};
use crate::observe::Arrival;
use crate::protocol::chat::ChatRequest;
use crate::protocol::completion::{CompletionRequest, Echo, PromptInput, prompt_param};
use crate::protocol::params::{Bounds, Delivery, GenerationParams};
use crate::protocol::response::Head;
use crate::protocol::{messages, responses};
use crate::text::{PromptError, SpecialInOutput};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use oxide_infer::TokenId;
use std::sync::Arc;

/// `POST /v1/chat/completions`.
pub(crate) async fn chat(
    State(app): State<Arc<App>>,
    Extension(arrival): Extension<Arrival>,
    request: Request,
) -> Result<Response, ApiError> {
    let parse = |body: &[u8], bounds: Bounds<'_>| Ok((ChatRequest::parse(body, bounds)?, ()));
    let (job, place, ()) = chat_job(&app, request, parse).await?;
    let format = ChatFormat { logprobs: job.logprobs.is_some() };
    answer(app, arrival, job, place, format, "chatcmpl").await
}

/// `POST /v1/messages`.
pub(crate) async fn message(
    State(app): State<Arc<App>>,
    Extension(arrival): Extension<Arrival>,
    request: Request,
) -> Result<Response, ApiError> {
    let parse = |body: &[u8], bounds: Bounds<'_>| Ok((messages::parse(body, bounds)?, ()));
    let (job, place, ()) = chat_job(&app, request, parse).await?;
    let head = MessageHead { id: format!("msg_{}", arrival.id).into(), model: app.model_name().clone() };
    let delivery = job.params.delivery;
    let generation = begin(&app, &arrival, job, place).await?;
    match delivery {
        Delivery::Whole => Ok(Json(head.whole(&mut generation.completed().await?)).into_response()),
        Delivery::Stream(_) => {
            respond_streaming(generation, MessageWriter::new(head), app.config().limits.keep_alive).await
        }
    }
}

/// `POST /v1/responses`.
pub(crate) async fn response(
    State(app): State<Arc<App>>,
    Extension(arrival): Extension<Arrival>,
    request: Request,
) -> Result<Response, ApiError> {
    let (job, place, echo) = chat_job(&app, request, responses::parse).await?;
    let head = Head {
        id: format!("resp_{}", arrival.id).into(),
        object: "response",
        created: unix_time(),
        model: app.model_name().clone(),
    };
    let head = ResponseHead { head, echo };
    let delivery = job.params.delivery;
    let generation = begin(&app, &arrival, job, place).await?;
    match delivery {
        Delivery::Whole => Ok(Json(head.whole(&mut generation.completed().await?)).into_response()),
        Delivery::Stream(_) => {
            respond_streaming(generation, ResponseWriter::new(head), app.config().limits.keep_alive).await
        }
    }
}

/// `POST /v1/completions`.
pub(crate) async fn completion(
    State(app): State<Arc<App>>,
    Extension(arrival): Extension<Arrival>,
    request: Request,
) -> Result<Response, ApiError> {
    let job = with_body(&app, request, |app, body| {
        let request = CompletionRequest::parse(&body, app.bounds())?;
        let place = app.admit()?;
        app.check_model(request.model.as_deref())?;
        Ok((prepare_completion(app, request)?, place))
    });
    let (job, place) = job.await?;
    let format = CompletionFormat { logprobs: job.logprobs };
    answer(app, arrival, job, place, format, "cmpl").await
}

/// Reads a conversation in an API's form and makes it ready for the engine, with what else the API's answer needs.
async fn chat_job<T: Send + 'static>(
    app: &Arc<App>,
    request: Request,
    parse: impl FnOnce(&[u8], Bounds<'_>) -> Result<(ChatRequest, T), ApiError> + Send + 'static,
) -> Result<(Job, InFlight, T), ApiError> {
    with_body(app, request, |app, body| {
        let (request, rest) = parse(&body, app.bounds())?;
        let place = app.admit()?;
        app.check_model(request.model.as_deref())?;
        Ok((prepare_chat(app, request)?, place, rest))
    })
    .await
}

async fn answer<F: Format>(
    app: Arc<App>,
    arrival: Arrival,
    job: Job,
    place: InFlight,
    format: F,
    id_prefix: &str,
) -> Result<Response, ApiError> {
    let delivery = job.params.delivery;
    let head = Head {
        id: format!("{id_prefix}-{}", arrival.id).into(),
        object: match delivery {
            Delivery::Whole => F::WHOLE,
            Delivery::Stream(_) => F::CHUNK,
        },
        created: unix_time(),
        model: app.model_name().clone(),
    };
    let generation = begin(&app, &arrival, job, place).await?;
    match delivery {
        Delivery::Whole => Ok(respond_whole(generation.completed().await?, format, head)),
        Delivery::Stream(usage) => {
            let writer = ChunkWriter::new(&generation, format, head, usage)?;
            respond_streaming(generation, writer, app.config().limits.keep_alive).await
        }
    }
}

/// Hands a request to the engine, once what its answers are held to is compiled.
async fn begin(
    app: &Arc<App>,
    arrival: &Arrival,
    mut job: Job,
    place: InFlight,
) -> Result<Generation, ApiError> {
    if let Some(spec) = job.params.grammar.take() {
        job.grammar = Some(app.grammars().compile(spec).await?);
    }
    Generation::start(app.clone(), job, arrival.at, place)
}

fn prepare_chat(app: &App, mut request: ChatRequest) -> Result<Job, ApiError> {
    let (rendered, tokens) = super::tokenize::chat_tokens(app, &request.chat)?;
    let plan = output::plan(app, &request, &rendered)?;
    request.params.grammar = output::grammar(request.params.grammar.take(), &request.tools, &plan);
    let kept = request.params.truncate(&tokens, app.bounds());
    let prompt = prepare_prompt(app, &request.params, kept, None, request.chat.param.to_owned())?;
    Ok(Job {
        prompts: vec![prompt],
        prompt_logprobs: request.params.prompt_logprobs,
        params: request.params,
        logprobs: request.logprobs,
        grammar: None,
        output: plan,
    })
}

fn prepare_completion(app: &App, request: CompletionRequest) -> Result<Job, ApiError> {
    let count = request.prompts.len();
    let echoes = request.echo == Echo::Prompt;
    let mut prompts = Vec::with_capacity(count);
    for (index, input) in request.prompts.into_iter().enumerate() {
        let param = prompt_param("prompt", index, count);
        let (tokens, text) = match input {
            PromptInput::Text(text) => {
                let tokens = app.text().encode(&text, request.add_special_tokens);
                (tokens.map_err(|error| prompt_error(error, &param))?, Some(text))
            }
            PromptInput::Tokens(tokens) => (tokens, None),
        };
        let kept = request.params.truncate(&tokens, app.bounds());
        let echo = echoes.then(|| match text {
            Some(text) if kept.len() == tokens.len() => text,
            _ => app.text().decode(kept, SpecialInOutput::Keep),
        });
        prompts.push(prepare_prompt(app, &request.params, kept, echo, param)?);
    }
    Ok(Job {
        prompts,
        // As many as the one who wants most; each is shown what it asked for.
        prompt_logprobs: request.params.prompt_logprobs.max(request.logprobs.filter(|_| echoes)),
        params: request.params,
        logprobs: request.logprobs,
        grammar: None,
        output: OutputPlan::plain(),
    })
}

fn prepare_prompt(
    app: &App,
    params: &GenerationParams,
    tokens: &[TokenId],
    echo: Option<String>,
    param: String,
) -> Result<PreparedPrompt, ApiError> {
    let max_tokens = params.answer_room(tokens.len(), &param, app.bounds())?;
    Ok(PreparedPrompt { tokens: tokens.into(), echo, max_tokens, param })
}

/// The error of a prompt that cannot be made; `param` is the field it came in.
pub(super) fn prompt_error(error: PromptError, param: &str) -> ApiError {
    let param = match &error {
        PromptError::Message { index, .. } => format!("{param}[{index}]"),
        PromptError::Continue(_) => "continue_final_message".to_owned(),
        _ => param.to_owned(),
    };
    ApiError::InvalidValue { param, reason: format!("cannot be made a prompt: {error}") }
}
