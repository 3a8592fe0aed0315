use super::*;
use serde_json::json;

/// Llama-3.2-1B-Instruct's published configuration, as transformers 4 wrote it.
fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
        "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": true, "vocab_size": 128256
    })
}

/// Qwen2.5-1.5B-Instruct's published configuration.
fn qwen2() -> Value {
    json!({
        "architectures": ["Qwen2ForCausalLM"], "bos_token_id": 151643, "eos_token_id": 151645,
        "hidden_act": "silu", "hidden_size": 1536, "intermediate_size": 8960, "max_position_embeddings": 32768,
        "max_window_layers": 21, "num_attention_heads": 12, "num_hidden_layers": 28, "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true,
        "use_sliding_window": false, "vocab_size": 151936
    })
}

fn read(config: &Value) -> Result<ModelConfig, ConfigError> {
    ModelConfig::from_json(&config.to_string())
}

/// The configuration with fields replaced; `null` stays as it is and the string "absent" removes the field.
fn with(mut config: Value, fields: Value) -> Value {
    for (name, value) in fields.as_object().unwrap() {
        match value.as_str() {
            Some("absent") => drop(config.as_object_mut().unwrap().remove(name)),
            _ => config[name] = value.clone(),
        }
    }
    config
}

#[test]
fn a_llama_configuration_is_read() {
    let config = read(&llama()).unwrap();
    assert_eq!(config.architecture, Architecture::Llama);
    assert_eq!((config.num_layers, config.hidden_size, config.intermediate_size), (16, 2048, 8192));
    assert_eq!((config.num_heads, config.num_kv_heads, config.head_dim), (32, 8, 64));
    assert_eq!((config.query_size(), config.kv_size()), (2048, 512));
    assert_eq!(config.output_head, OutputHead::Tied);
    assert_eq!(config.biases, Biases::default());
    assert_eq!(config.eos_token_ids, [TokenId(128001), TokenId(128008), TokenId(128009)]);
    assert_eq!(config.bos_token_id, Some(TokenId(128000)));
    let scaling = Scaling::Llama3 {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position: 8192,
    };
    assert_eq!(config.rope, RopeConfig { theta: 500_000.0, scaling });
    assert!(config.sliding_windows.iter().all(Option::is_none));
}

#[test]
fn rope_parameters_of_transformers_5_are_read_like_the_old_fields() {
    let new = with(
        llama(),
        json!({"rope_theta": "absent", "rope_scaling": "absent",
            "rope_parameters": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3", "rope_theta": 500000.0}}),
    );
    assert_eq!(read(&new).unwrap(), read(&llama()).unwrap());
}

#[test]
fn qwen2_has_biases_and_the_generation_configuration_adds_its_end_tokens() {
    let generation = r#"{"eos_token_id": [151645, 151643], "temperature": 0.7}"#;
    let config = read(&qwen2()).unwrap().with_generation_config(generation).unwrap();
    assert_eq!(config.biases, Biases { qkv: true, output: false, feed_forward: false });
    assert_eq!(config.head_dim, 128);
    assert_eq!(config.eos_token_ids, [TokenId(151645), TokenId(151643)]);
    assert!(config.sliding_windows.iter().all(Option::is_none), "use_sliding_window is false");
}

#[test]
fn sliding_windows_begin_at_max_window_layers_unless_layers_are_typed() {
    let on = json!({"use_sliding_window": true, "sliding_window": 64, "max_window_layers": 1, "num_hidden_layers": 3});
    let window = NonZeroU32::new(64);
    assert_eq!(read(&with(qwen2(), on.clone())).unwrap().sliding_windows, [None, window, window]);
    let typed = with(qwen2(), on);
    let typed =
        with(typed, json!({"layer_types": ["sliding_attention", "full_attention", "full_attention"]}));
    assert_eq!(read(&typed).unwrap().sliding_windows, [window, None, None]);
    let wrong = with(typed, json!({"layer_types": ["sliding_attention"]}));
    assert!(read(&wrong).unwrap_err().to_string().contains("layer_types"));
}

#[test]
fn mistral_slides_by_default_and_null_turns_it_off() {
    let mistral = with(llama(), json!({"architectures": ["MistralForCausalLM"], "rope_scaling": null}));
    assert_eq!(read(&mistral).unwrap().sliding_windows, [NonZeroU32::new(4096); 16]);
    let off = with(mistral.clone(), json!({"sliding_window": null}));
    assert_eq!(read(&off).unwrap().sliding_windows, [None; 16]);
    let own = with(mistral, json!({"sliding_window": 32}));
    assert_eq!(read(&own).unwrap().sliding_windows, [NonZeroU32::new(32); 16]);
}

#[test]
fn qwen3_normalizes_heads_and_its_heads_default_to_128() {
    let qwen3 = with(qwen2(), json!({"architectures": ["Qwen3ForCausalLM"]}));
    let config = read(&qwen3).unwrap();
    assert_eq!((config.qk_norm, config.head_dim), (QkNorm::PerHead, 128));
    assert_eq!(config.query_size(), 12 * 128);
    assert_eq!(config.biases, Biases::default());
}

#[test]
fn yarn_is_read_with_the_defaults_of_transformers() {
    let yarn =
        json!({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}});
    let expected = |attention_factor| Scaling::Yarn {
        factor: 4.0,
        original_max_position: 32768,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor,
    };
    let config = read(&with(qwen2(), yarn)).unwrap();
    assert_eq!(config.rope.scaling, expected(None));
    assert_eq!(config.max_position_embeddings, 131_072);
    let given = json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5,
        "original_max_position_embeddings": 32768, "beta_fast": 32, "beta_slow": 1}});
    assert_eq!(read(&with(qwen2(), given)).unwrap().rope.scaling, expected(Some(1.5)));
    // (0.1 · 2 · ln 4 + 1) / (0.1 · ln 4 + 1)
    let scaled = json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 2.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 32768}});
    let Scaling::Yarn { attention_factor: Some(factor), .. } =
        read(&with(qwen2(), scaled)).unwrap().rope.scaling
    else {
        panic!("no attention factor")
    };
    assert!((factor - 1.277_258_872_223_978 / 1.138_629_436_111_989).abs() < 1e-12);
}

#[test]
fn every_refusal_names_the_field_the_value_and_what_was_expected() {
    for (fields, message) in [
        (json!({"architectures": "absent"}), "architectures is missing"),
        (json!({"architectures": []}), "architectures is []; a list with one name is expected"),
        (
            json!({"architectures": ["GPT2LMHeadModel"]}),
            "architecture \"GPT2LMHeadModel\" is not supported; supported are LlamaForCausalLM, \
             MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM",
        ),
        (json!({"hidden_size": "absent"}), "hidden_size is missing"),
        (json!({"hidden_size": -4}), "hidden_size is -4; a whole number is expected"),
        (json!({"num_hidden_layers": 0}), "num_layers is 0; a size from 1 to 16777216 is expected"),
        (json!({"num_hidden_layers": 1000000}), "num_layers is 1000000; at most 4096 is expected"),
        (json!({"num_key_value_heads": 5}), "num_kv_heads is 5; a divisor of the 32 query heads is expected"),
        (json!({"head_dim": 63}), "head_dim is 63; an even number is expected"),
        (
            json!({"head_dim": null, "num_attention_heads": 30, "num_key_value_heads": 30}),
            "num_attention_heads is 30; a divisor of hidden_size, 2048, as there is no head_dim is expected",
        ),
        (
            json!({"head_dim": 16777216}),
            "num_heads · head_dim is 32 · 16777216; at most 16777216 is expected",
        ),
        (json!({"rms_norm_eps": 0.0}), "rms_norm_eps is 0; a positive number is expected"),
        (json!({"rope_theta": -1.0}), "position.rope v1: theta must be a finite number over 1, got -1"),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 0}}),
            "position.rope v1: scaling.factor must be a finite number over 0, got 0",
        ),
        (json!({"rope_theta": "ten"}), "rope_theta is \"ten\"; a number is expected"),
        (json!({"rope_scaling": {"factor": 2.0, "type": "linear", "x": 1}}), ""),
        (json!({"rope_scaling": {"type": "linear"}}), "rope_scaling.factor is missing"),
        (
            json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
            "rope_scaling.rope_type is \"dynamic\", which is not supported; \"default\", \"linear\", \"llama3\" or \
             \"yarn\" is",
        ),
        (json!({"hidden_act": "gelu"}), "hidden_act is \"gelu\", which is not supported; \"silu\" is"),
        (
            json!({"quantization_config": {"quant_method": "gptq"}}),
            "quantization_config is \"gptq\", which is not supported; a checkpoint in bf16, f16 or f32, or a GGUF \
             file, is",
        ),
        (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor is 0.5, which is not supported; 1 is"),
        (
            json!({"eos_token_id": 128256}),
            "eos_token_id or bos_token_id is 128256; an id below the vocabulary's size, 128256 is expected",
        ),
        (
            json!({"eos_token_id": "</s>"}),
            "eos_token_id is \"</s>\"; a token id or a list of token ids is expected",
        ),
    ] {
        let result = read(&with(llama(), fields.clone()));
        assert_eq!(result.err().map(|error| error.to_string()).unwrap_or_default(), message, "{fields}");
    }
    let text = ModelConfig::from_json("[1]").unwrap_err().to_string();
    assert!(text.starts_with("not a JSON object"), "{text}");
}
