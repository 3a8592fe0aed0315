use super::{Architecture, WeightId, WeightRole};

/// How files name weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// As Hugging Face checkpoints do.
    HuggingFace,
    /// As llama.cpp's converter does.
    Gguf,
}

/// Order of a query or key matrix's rows inside each head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryRows {
    /// Rows `i` and `i + head_dim / 2` of a head rotate together.
    Halves,
    /// Rows `2i` and `2i + 1` of a head rotate together.
    Interleaved,
}

impl Naming {
    /// What the files call a weight.
    pub fn name(self, id: WeightId) -> String {
        match (self, id.layer) {
            (Self::HuggingFace, None) => match id.role {
                WeightRole::OutputHead => "lm_head.weight".to_owned(),
                role => format!("model.{}", hugging_face_name(role)),
            },
            (Self::HuggingFace, Some(layer)) => {
                format!("model.layers.{layer}.{}", hugging_face_name(id.role))
            }
            (Self::Gguf, None) => gguf_name(id.role).to_owned(),
            (Self::Gguf, Some(layer)) => format!("blk.{layer}.{}", gguf_name(id.role)),
        }
    }

    /// Row order of the query and key matrices and biases. llama.cpp's converter permutes those of Llama and
    /// Mistral; of the other families it leaves them as they are.
    pub fn rotary_rows(self, architecture: Architecture) -> RotaryRows {
        match (self, architecture) {
            (Self::Gguf, Architecture::Llama | Architecture::Mistral) => RotaryRows::Interleaved,
            (Self::Gguf, Architecture::Qwen2 | Architecture::Qwen3) | (Self::HuggingFace, _) => {
                RotaryRows::Halves
            }
        }
    }

    /// Tensors that files may have and that no operator reads.
    pub fn is_ignored(self, name: &str) -> bool {
        match self {
            // Old checkpoints stored a table that is computed.
            Self::HuggingFace => name.ends_with("rotary_emb.inv_freq"),
            // Read into the configuration.
            Self::Gguf => name == "rope_freqs.weight",
        }
    }
}

fn hugging_face_name(role: WeightRole) -> &'static str {
    match role {
        WeightRole::TokenEmbedding => "embed_tokens.weight",
        WeightRole::AttentionNorm => "input_layernorm.weight",
        WeightRole::Query => "self_attn.q_proj.weight",
        WeightRole::QueryBias => "self_attn.q_proj.bias",
        WeightRole::Key => "self_attn.k_proj.weight",
        WeightRole::KeyBias => "self_attn.k_proj.bias",
        WeightRole::Value => "self_attn.v_proj.weight",
        WeightRole::ValueBias => "self_attn.v_proj.bias",
        WeightRole::QueryNorm => "self_attn.q_norm.weight",
        WeightRole::KeyNorm => "self_attn.k_norm.weight",
        WeightRole::AttentionOutput => "self_attn.o_proj.weight",
        WeightRole::AttentionOutputBias => "self_attn.o_proj.bias",
        WeightRole::FeedForwardNorm => "post_attention_layernorm.weight",
        WeightRole::Gate => "mlp.gate_proj.weight",
        WeightRole::GateBias => "mlp.gate_proj.bias",
        WeightRole::Up => "mlp.up_proj.weight",
        WeightRole::UpBias => "mlp.up_proj.bias",
        WeightRole::Down => "mlp.down_proj.weight",
        WeightRole::DownBias => "mlp.down_proj.bias",
        WeightRole::FinalNorm => "norm.weight",
        WeightRole::OutputHead => "lm_head.weight",
    }
}

fn gguf_name(role: WeightRole) -> &'static str {
    match role {
        WeightRole::TokenEmbedding => "token_embd.weight",
        WeightRole::AttentionNorm => "attn_norm.weight",
        WeightRole::Query => "attn_q.weight",
        WeightRole::QueryBias => "attn_q.bias",
        WeightRole::Key => "attn_k.weight",
        WeightRole::KeyBias => "attn_k.bias",
        WeightRole::Value => "attn_v.weight",
        WeightRole::ValueBias => "attn_v.bias",
        WeightRole::QueryNorm => "attn_q_norm.weight",
        WeightRole::KeyNorm => "attn_k_norm.weight",
        WeightRole::AttentionOutput => "attn_output.weight",
        WeightRole::AttentionOutputBias => "attn_output.bias",
        WeightRole::FeedForwardNorm => "ffn_norm.weight",
        WeightRole::Gate => "ffn_gate.weight",
        WeightRole::GateBias => "ffn_gate.bias",
        WeightRole::Up => "ffn_up.weight",
        WeightRole::UpBias => "ffn_up.bias",
        WeightRole::Down => "ffn_down.weight",
        WeightRole::DownBias => "ffn_down.bias",
        WeightRole::FinalNorm => "output_norm.weight",
        WeightRole::OutputHead => "output.weight",
    }
}
