//! The request and the response of `/v1/embeddings`.

use super::completion::{PromptInput, read_prompts};
use super::fields::Fields;
use super::params::{Bounds, Truncation, read_add_special_tokens, read_truncation};
use super::rules::Route;
use crate::error::ApiError;
use crate::text::AddSpecialTokens;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oxide_infer_engine::request::Pooling;
use serde::Serialize;
use std::sync::Arc;

/// A request for vectors.
#[derive(Clone, Debug)]
pub(crate) struct EmbeddingRequest {
    /// The model asked for.
    pub(crate) model: Option<String>,
    /// What vectors are made of; at least one.
    pub(crate) inputs: Vec<PromptInput>,
    /// How hidden states become one vector; absent means the server's own way.
    pub(crate) pooling: Option<Pooling>,
    /// The form of the vectors.
    pub(crate) form: VectorForm,
    /// How much of an input is kept.
    pub(crate) truncation: Truncation,
    /// Whether texts get what the tokenizer puts around a text.
    pub(crate) add_special_tokens: AddSpecialTokens,
}

/// The form of vectors in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VectorForm {
    pub(crate) encoding: Encoding,
    pub(crate) length: Length,
}

/// How a vector is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// As an array of numbers.
    Float,
    /// As the base64 of its elements' bytes, `f32` in little endian.
    Base64,
}

/// What is done with a vector's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// It is made 1, in the Euclidean norm.
    One,
    /// Nothing.
    AsIs,
}

impl EmbeddingRequest {
    /// Reads and checks a request's body. `hidden_size` is what vectors have, of a model that gives any.
    pub(crate) fn parse(
        body: &[u8],
        bounds: Bounds<'_>,
        hidden_size: Option<usize>,
    ) -> Result<Self, ApiError> {
        let mut fields = Fields::parse_body(body, Route::Embeddings)?;
        let request = Self {
            model: fields.string("model")?,
            inputs: read_prompts(&mut fields, "input", bounds.limits.max_inputs, bounds.vocab_size)?,
            pooling: read_pooling(&mut fields)?,
            form: VectorForm { encoding: read_encoding(&mut fields)?, length: read_length(&mut fields)? },
            truncation: read_truncation(&mut fields)?,
            add_special_tokens: read_add_special_tokens(&mut fields, AddSpecialTokens::Add)?,
        };
        let dimensions = fields.count("dimensions", 1, u32::MAX)?;
        if let (Some(asked), Some(size)) = (dimensions, hidden_size)
            && asked as usize != size
        {
            let reason = format!("must be absent or {size}, the size of this model's vectors, got {asked}");
            return Err(fields.invalid("dimensions", reason));
        }
        fields.finish()?;
        Ok(request)
    }
}

fn read_pooling(fields: &mut Fields<'_>) -> Result<Option<Pooling>, ApiError> {
    fields.one_of("pooling", &[("last", Pooling::Last), ("mean", Pooling::Mean)])
}

fn read_encoding(fields: &mut Fields<'_>) -> Result<Encoding, ApiError> {
    let names = [("float", Encoding::Float), ("base64", Encoding::Base64)];
    Ok(fields.one_of("encoding_format", &names)?.unwrap_or(Encoding::Float))
}

fn read_length(fields: &mut Fields<'_>) -> Result<Length, ApiError> {
    let normalize = fields.flag("normalize")?.unwrap_or(true);
    Ok(if normalize { Length::One } else { Length::AsIs })
}

/// The response.
#[derive(Debug, Serialize)]
pub(crate) struct EmbeddingResponse {
    object: &'static str,
    data: Vec<Embedding>,
    model: Arc<str>,
    usage: EmbeddingUsage,
}

#[derive(Debug, Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Vector {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Debug, Serialize)]
struct EmbeddingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl EmbeddingResponse {
    /// Vectors in the form that was asked for.
    pub(crate) fn new(
        vectors: Vec<Vec<f32>>,
        form: VectorForm,
        model: Arc<str>,
        prompt_tokens: usize,
    ) -> Self {
        let data = vectors.into_iter().enumerate().map(|(index, vector)| Embedding {
            object: "embedding",
            index,
            embedding: form.write(vector),
        });
        Self {
            object: "list",
            data: data.collect(),
            model,
            usage: EmbeddingUsage { prompt_tokens, total_tokens: prompt_tokens },
        }
    }
}

impl VectorForm {
    fn write(self, mut vector: Vec<f32>) -> Vector {
        if self.length == Length::One {
            normalize(&mut vector);
        }
        match self.encoding {
            Encoding::Float => Vector::Float(vector),
            Encoding::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|element| element.to_le_bytes()).collect();
                Vector::Base64(STANDARD.encode(bytes))
            }
        }
    }
}

/// Divides a vector by its Euclidean norm. One of zeros stays as it is.
fn normalize(vector: &mut [f32]) {
    let norm = vector.iter().map(|element| f64::from(*element).powi(2)).sum::<f64>().sqrt();
    if norm > 0.0 {
        vector.iter_mut().for_each(|element| *element = (f64::from(*element) / norm) as f32);
    }
}
