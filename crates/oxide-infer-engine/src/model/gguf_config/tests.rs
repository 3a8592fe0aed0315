use super::*;
use crate::testing::GgufWriter;

fn smollm2() -> GgufWriter {
    GgufWriter::new()
        .string("general.architecture", "llama")
        .u32("llama.block_count", 30)
        .u32("llama.context_length", 8192)
        .u32("llama.embedding_length", 576)
        .u32("llama.feed_forward_length", 1536)
        .u32("llama.attention.head_count", 9)
        .u32("llama.attention.head_count_kv", 3)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .u32("tokenizer.ggml.eot_token_id", 2)
        .u32("tokenizer.ggml.bos_token_id", 1)
        .tensor("token_embd.weight", &[4, 576], TensorType::F32, &[0; 4 * 576 * 4])
}

fn read(writer: &GgufWriter) -> Result<ModelConfig, ConfigError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), writer.build()).unwrap();
    ModelConfig::from_gguf(&Gguf::open(file.path()).unwrap())
}

#[test]
fn a_llama_file_is_read_and_the_output_matrix_is_tied_when_it_has_none() {
    let config = read(&smollm2().f32("llama.rope.freq_base", 100_000.0)).unwrap();
    assert_eq!((config.num_layers, config.hidden_size, config.intermediate_size), (30, 576, 1536));
    assert_eq!((config.num_heads, config.num_kv_heads, config.head_dim), (9, 3, 64));
    assert_eq!((config.vocab_size, config.max_position_embeddings), (4, 8192));
    assert_eq!(config.rms_norm_eps, 1e-5);
    assert_eq!(config.rope, RopeConfig { theta: 100_000.0, scaling: Scaling::None });
    assert_eq!(config.output_head, OutputHead::Tied);
    assert_eq!((config.eos_token_ids, config.bos_token_id), (vec![TokenId(2)], Some(TokenId(1))));
    let separate = smollm2().tensor("output.weight", &[4, 576], TensorType::F32, &[0; 4 * 576 * 4]);
    assert_eq!(read(&separate).unwrap().output_head, OutputHead::Separate);
}

#[test]
fn rope_scaling_is_read_from_keys_or_from_the_tensor_of_factors() {
    let linear = smollm2().string("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4.0);
    assert_eq!(read(&linear).unwrap().rope.scaling, Scaling::Linear { factor: 4.0 });
    let old = smollm2().f32("llama.rope.scale_linear", 2.0);
    assert_eq!(read(&old).unwrap().rope.scaling, Scaling::Linear { factor: 2.0 });

    let yarn = smollm2()
        .string("llama.rope.scaling.type", "yarn")
        .f32("llama.rope.scaling.factor", 4.0)
        .u32("llama.rope.scaling.original_context_length", 2048)
        .f32("llama.rope.scaling.attn_factor", 2.0);
    let expected = Scaling::Yarn {
        factor: 4.0,
        original_max_position: 2048,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: Some(2.0 * (0.1 * 4f64.ln() + 1.0)),
    };
    assert_eq!(read(&yarn).unwrap().rope.scaling, expected);

    let factors: Vec<f32> = (0..32).map(|i| 1.0 + i as f32).collect();
    let bytes: Vec<u8> = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
    let tensor = smollm2().tensor("rope_freqs.weight", &[32], TensorType::F32, &bytes);
    assert_eq!(read(&tensor).unwrap().rope.scaling, Scaling::Divided { divisors: factors.into() });
    let short = smollm2().tensor("rope_freqs.weight", &[1], TensorType::F32, &[0; 4]);
    assert_eq!(
        read(&short).unwrap_err().to_string(),
        "position.rope v1: number of scaling.divisors must be rotary_dim / 2, got 1"
    );
}

#[test]
fn every_refusal_names_the_key() {
    for (writer, message) in [
        (GgufWriter::new(), "general.architecture is missing"),
        (
            GgufWriter::new().string("general.architecture", "gemma3"),
            "architecture \"gemma3\" is not supported; supported are llama, qwen2, qwen3",
        ),
        (GgufWriter::new().string("general.architecture", "qwen2"), "qwen2.embedding_length is missing"),
        (
            smollm2().u32("llama.expert_count", 8),
            "llama.expert_count is 8, which is not supported; a model without it is",
        ),
        (
            smollm2().u32("llama.rope.dimension_count", 32),
            "llama.rope.dimension_count is 32, which is not supported; the width of a key head, 64, is",
        ),
        (
            smollm2().string("llama.rope.scaling.type", "longrope"),
            "llama.rope.scaling.type is \"longrope\", which is not supported; \"none\", \"linear\" or \"yarn\" is",
        ),
        (
            GgufWriter::new().string("general.architecture", "llama").f32("llama.embedding_length", 1.0),
            "metadata \"llama.embedding_length\" is an f32; an integer is expected",
        ),
    ] {
        assert_eq!(read(&writer).unwrap_err().to_string(), message);
    }
}
