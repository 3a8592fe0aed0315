//! A model that is quick to load and takes some seconds for its longest answers.

use anyhow::Result;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

/// Sequences that run at once.
pub(super) const SEQUENCES: usize = 8;
/// Tokens of an answer that does not end before the fault.
pub(super) const LONG: u32 = 32_000;
const VOCAB: u32 = 1024;

/// Writes the folder of a model, all but its weights, which are random.
pub(super) fn write(dir: &Path) -> Result<()> {
    let config = json!({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 1024, "intermediate_size": 2816,
        "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 2, "vocab_size": VOCAB,
        "max_position_embeddings": 32_768, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": true, "eos_token_id": 2, "bos_token_id": 1
    });
    std::fs::write(dir.join("config.json"), config.to_string())?;
    // A word for every token, so that each is seen in the text. Prompts are given as tokens.
    let vocabulary: BTreeMap<_, _> = (0..VOCAB).map(|id| (format!("w{id}"), id)).collect();
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false
    });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [], "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    });
    std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string())?;
    Ok(())
}
