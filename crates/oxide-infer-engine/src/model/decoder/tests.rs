use super::*;

fn config(json: serde_json::Value) -> ModelConfig {
    let mut config = serde_json::json!({
        "architectures": ["Qwen2ForCausalLM"], "hidden_size": 8, "intermediate_size": 12,
        "max_position_embeddings": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3,
        "vocab_size": 10
    });
    config.as_object_mut().unwrap().extend(json.as_object().unwrap().clone());
    ModelConfig::from_json(&config.to_string()).unwrap()
}

#[test]
fn operators_are_listed_in_order_and_equal_layers_once() {
    let decoder = DenseDecoder::new(&config(serde_json::json!({
        "use_sliding_window": true, "sliding_window": 5, "max_window_layers": 2
    })));
    let layer = |attention: &str| {
        format!(
            "  Normed = rms_norm Hidden AttentionNorm[8] eps 0.000001
  Query = dense Normed Query[8, 8] QueryBias[8]
  Key = dense Normed Key[4, 8] KeyBias[4]
  Value = dense Normed Value[4, 8] ValueBias[4]
  Rotated, KV pages = rope_append Query Key Value
  {attention}
  Hidden += dense Attention AttentionOutput[8, 8]
  Normed = rms_norm Hidden FeedForwardNorm[8] eps 0.000001
  Gate = dense Normed Gate[12, 8]
  Up = dense Normed Up[12, 8]
  Activated = swiglu Gate Up
  Hidden += dense Activated Down[8, 12]
"
        )
    };
    let expected = format!(
        "Hidden = gather TokenEmbedding[10, 8]
layers 0 to 1
{}layer 2
{}Normed = rms_norm Hidden FinalNorm[8] eps 0.000001
Logits = dense Normed OutputHead[10, 8]
",
        layer("Attention = paged_attention Rotated"),
        layer("Attention = paged_attention Rotated window 5"),
    );
    assert_eq!(decoder.to_string(), expected);
}

#[test]
fn a_tied_output_matrix_is_the_embedding_and_is_needed_once() {
    let tied = DenseDecoder::new(&config(serde_json::json!({"tie_word_embeddings": true})));
    let roles: Vec<_> = tied.weights().iter().map(|weight| weight.id().role).collect();
    assert_eq!(roles.iter().filter(|role| **role == WeightRole::TokenEmbedding).count(), 1);
    assert!(!roles.contains(&WeightRole::OutputHead));
    // Embedding and final norm; per layer 2 norms, 7 matrices, 3 biases.
    assert_eq!(roles.len(), 2 + 3 * 12);
}

#[test]
fn head_norms_and_wide_heads_of_qwen3_are_there() {
    let qwen3 = config(serde_json::json!({"architectures": ["Qwen3ForCausalLM"], "head_dim": 6}));
    let weights = DenseDecoder::new(&qwen3).weights();
    let shape = |role| weights.iter().find(|weight| weight.id().role == role).map(WeightRef::shape);
    assert_eq!(shape(WeightRole::QueryNorm), Some(vec![6]));
    assert_eq!(shape(WeightRole::Query), Some(vec![24, 8]));
    assert_eq!(shape(WeightRole::AttentionOutput), Some(vec![8, 24]));
    assert_eq!(shape(WeightRole::QueryBias), None);
}
