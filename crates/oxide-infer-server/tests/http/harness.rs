//! A server over a scripted engine and a tokenizer with one token for every byte.

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::response::Response;
use oxide_infer::TokenId;
use oxide_infer_engine::testing::scripted::{SMALL_LIMITS, ScriptedExecutor};
use oxide_infer_engine::{Engine, EngineConfig, EngineHandle, ExecutorLimits};
use oxide_infer_server::text::{TextModel, TextOptions};
use oxide_infer_server::{Server, ServerConfig};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;
use tower::ServiceExt;

pub(crate) const MODEL: &str = "tiny";
/// `<|im_start|>`.
pub(crate) const IM_START: u32 = 256;
/// `<|im_end|>`: ends an answer.
pub(crate) const IM_END: u32 = 257;
/// Tokens in the engine's vocabulary: a few more than the tokenizer's, as with padded models.
pub(crate) const VOCAB: usize = 264;
pub(crate) const MAX_MODEL_LEN: usize = 256;

pub(crate) const LIMITS: ExecutorLimits = ExecutorLimits {
    num_pages: 1024,
    max_sequences: 8,
    max_batch_tokens: 512,
    max_model_len: MAX_MODEL_LEN,
    vocab_size: VOCAB,
    ..SMALL_LIMITS
};

/// The template writes each message as `<|im_start|>role\ncontent<|im_end|>\n`.
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
    {% if not (loop.last and continue_final_message) %}<|im_end|>\n{% endif %}{% endfor %}\
    {% if shout %}!{% endif %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A server that needs no network.
pub(crate) struct Harness {
    pub(crate) server: Server,
    pub(crate) engine: EngineHandle,
    router: Router,
}

impl Harness {
    /// Answers every prompt with the bytes of `answer` and then `<|im_end|>`.
    pub(crate) fn answering(answer: &str) -> Self {
        Self::new(executor(answer), |_| {})
    }

    pub(crate) fn new(executor: ScriptedExecutor, configure: impl FnOnce(&mut ServerConfig)) -> Self {
        Self::with_engine(executor, EngineConfig::default(), configure)
    }

    pub(crate) fn with_engine(
        executor: ScriptedExecutor,
        engine: EngineConfig,
        configure: impl FnOnce(&mut ServerConfig),
    ) -> Self {
        Self::of_model(executor, text(), engine, configure)
    }

    /// A server of a model with a template and special tokens of its own, which get the ids from 258 on.
    pub(crate) fn templated(executor: ScriptedExecutor, template: &str, specials: &[&str]) -> Self {
        Self::of_model(executor, text_with(template, specials), EngineConfig::default(), |_| {})
    }

    fn of_model(
        executor: ScriptedExecutor,
        text: Arc<TextModel>,
        engine: EngineConfig,
        configure: impl FnOnce(&mut ServerConfig),
    ) -> Self {
        let engine = Engine::start(Box::new(executor), engine).unwrap();
        let mut config = ServerConfig::new(MODEL);
        configure(&mut config);
        let server = Server::new(config, engine.clone(), text).unwrap();
        Self { router: server.router(), server, engine }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Reply {
        let (head, body) = self.respond(request).await.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        Reply { status: head.status, headers: head.headers, body: body.to_vec() }
    }

    /// The response before its body has been read.
    pub(crate) async fn respond(&self, request: Request<Body>) -> Response {
        self.router.clone().oneshot(request).await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Body>) -> Reply {
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
        self.send(request.body(body.into()).unwrap()).await
    }

    pub(crate) async fn post_json(&self, path: &str, body: &Value) -> Reply {
        self.post(path, body.to_string()).await
    }

    /// A chat with one message and these further fields.
    pub(crate) async fn chat(&self, fields: Value) -> Reply {
        self.post_json("/v1/chat/completions", &chat_body(fields)).await
    }

    /// A completion of `prompt` with these further fields.
    pub(crate) async fn complete(&self, prompt: impl Into<Value>, fields: Value) -> Reply {
        let body = merged(json!({"model": MODEL, "prompt": prompt.into()}), fields);
        self.post_json("/v1/completions", &body).await
    }
}

pub(crate) fn chat_body(fields: Value) -> Value {
    merged(json!({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}), fields)
}

/// `base` with the fields of `more` put over it.
pub(crate) fn merged(base: Value, more: Value) -> Value {
    let mut fields: Map<String, Value> = serde_json::from_value(base).unwrap();
    fields.extend(serde_json::from_value::<Map<String, Value>>(more).unwrap());
    fields.into()
}

/// The tokens of the chat that [`chat_body`] makes.
pub(crate) fn chat_prompt() -> Vec<u32> {
    tokens("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
}

/// Byte tokens, with the special tokens found.
pub(crate) fn tokens(text: &str) -> Vec<u32> {
    tokens_with(text, &[])
}

/// As [`tokens`], with special tokens that get the ids from 258 on.
pub(crate) fn tokens_with(text: &str, specials: &[&str]) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut rest = text;
    while let Some(byte) = rest.bytes().next() {
        let special = ["<|im_start|>", "<|im_end|>"].iter().chain(specials).zip(IM_START..);
        let special = special.into_iter().find_map(|(text, id)| Some((rest.strip_prefix(*text)?, id)));
        if let Some((after, id)) = special {
            ids.push(id);
            rest = after;
        } else {
            ids.push(u32::from(byte));
            // A character's bytes are all taken at once, so that `rest` stays a string.
            let width = rest.chars().next().unwrap().len_utf8();
            ids.extend(rest.bytes().take(width).skip(1).map(u32::from));
            rest = &rest[width..];
        }
    }
    ids
}

pub(crate) fn executor(answer: &str) -> ScriptedExecutor {
    executor_with(answer, &[], LIMITS)
}

/// As [`executor`], with special tokens that get the ids from 258 on, and with other limits.
pub(crate) fn executor_with(answer: &str, specials: &[&str], limits: ExecutorLimits) -> ScriptedExecutor {
    let mut ids: Vec<TokenId> = tokens_with(answer, specials).into_iter().map(TokenId).collect();
    ids.push(TokenId(IM_END));
    ScriptedExecutor::new(limits).answering(ids)
}

/// An executor that begins every answer with `lead` and goes on with noise, which depends on the seed and on what a mask
/// allows.
pub(crate) fn noise_after(lead: &str, specials: &[&str], limits: ExecutorLimits) -> ScriptedExecutor {
    let lead = tokens_with(lead, specials);
    ScriptedExecutor::new(limits).script(move |draw| {
        let at = draw.output.len();
        let noise = (draw.context ^ draw.sampling.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)) >> 7;
        TokenId(lead.get(at).copied().unwrap_or((noise % VOCAB as u64) as u32))
    })
}

/// An executor that repeats one letter, a step every `step_time`.
pub(crate) fn endless(step_time: Duration) -> ScriptedExecutor {
    ScriptedExecutor::new(LIMITS).answering([TokenId(u32::from(b'a'))]).step_time(step_time)
}

/// A response whose body has been read.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The body, of a response that must be 200.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text());
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The events of a stream before `[DONE]`, which must be there.
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text());
        let events: Vec<&str> =
            self.text().split_terminator("\n\n").filter(|event| !event.starts_with(':')).collect();
        let (last, events) = events.split_last().unwrap();
        assert_eq!(*last, "data: [DONE]");
        events
            .iter()
            .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
            .collect()
    }

    /// The events of a stream whose events have names, which must be their types.
    pub(crate) fn named_events(&self) -> Vec<Value> {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text());
        let events = self.text().split_terminator("\n\n").filter(|event| !event.starts_with(':'));
        events
            .map(|event| {
                let (name, data) = event.split_once('\n').unwrap();
                let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
                assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{event}");
                data
            })
            .collect()
    }

    /// Asserts the error object's status, code and param, and returns its message.
    pub(crate) fn error(&self, status: u16, code: &str, param: Option<&str>) -> String {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", self.text()));
        let error = &body["error"];
        let got = (self.status.as_u16(), error["code"].as_str(), error["param"].as_str());
        assert_eq!(got, (status, Some(code), param), "{body}");
        let fields: Vec<&String> = error.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["message", "type", "param", "code"]);
        error["message"].as_str().unwrap().to_owned()
    }
}

impl Reply {
    /// Asserts the status and type of an error in Anthropic's form, and returns its message.
    pub(crate) fn anthropic_error(&self, status: u16, kind: &str) -> String {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", self.text()));
        let got = (self.status.as_u16(), body["type"].as_str(), body["error"]["type"].as_str());
        assert_eq!(got, (status, Some("error"), Some(kind)), "{body}");
        assert_eq!(body["request_id"], self.headers["x-request-id"].to_str().unwrap());
        body["error"]["message"].as_str().unwrap().to_owned()
    }
}

/// The value of a metric's sample, all its labels in their order.
pub(crate) fn sample(metrics: &str, series: &str) -> Option<f64> {
    metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

pub(crate) fn text() -> Arc<TextModel> {
    text_with(TEMPLATE, &[])
}

fn text_with(template: &str, specials: &[&str]) -> Arc<TextModel> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer(specials).to_string()).unwrap();
    let config = json!({"eos_token": "<|im_end|>", "chat_template": template});
    std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    Arc::new(TextModel::load(dir.path(), &TextOptions::default()).unwrap())
}

fn tokenizer(specials: &[&str]) -> Value {
    let vocabulary: Map<String, Value> =
        (0..=255_u8).map(|byte| (byte_char(byte).to_string(), byte.into())).collect();
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false})
    };
    let all = ["<|im_start|>", "<|im_end|>"].iter().chain(specials).zip(IM_START..);
    let added: Vec<Value> = all.map(|(content, id)| special(id, content)).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": added,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    })
}

/// The character that GPT-2's byte-level vocabularies write for a byte.
fn byte_char(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let earlier = (0..byte).filter(|&byte| !printable(byte)).count() as u32;
    char::from_u32(256 + earlier).unwrap()
}
