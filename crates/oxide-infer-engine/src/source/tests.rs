use super::*;
use crate::model::Architecture;
use crate::testing::{GgufWriter, TinyModel};
use oxide_infer::{DType, TokenId};
use serde_json::json;

fn message(path: &Path) -> String {
    ModelSource::open(path).unwrap_err().to_string()
}

#[test]
fn a_directory_and_a_gguf_file_of_one_model_have_the_same_configuration() {
    for architecture in Architecture::ALL {
        let model = TinyModel::new(architecture, json!({"tie_word_embeddings": true, "bos_token_id": null}));
        let dir = tempfile::tempdir().unwrap();
        model.write_safetensors(dir.path(), DType::F32).unwrap();
        let file = dir.path().join("m.gguf");
        std::fs::write(&file, model.gguf(DType::F32).build()).unwrap();
        let from_dir = ModelSource::open(dir.path()).unwrap();
        let from_file = ModelSource::open(&file).unwrap();
        assert_eq!(from_dir.dir(), Some(dir.path()));
        assert!(from_dir.gguf().is_none() && from_file.gguf().is_some() && from_file.dir().is_none());
        let mut config = from_file.config().clone();
        if architecture == Architecture::Mistral {
            assert_eq!(config.architecture, Architecture::Llama, "GGUF files do not tell them apart");
            config.architecture = architecture;
        }
        config.rope.theta = config.rope.theta.round();
        assert_eq!(&config, from_dir.config());
    }
}

#[test]
fn end_tokens_of_the_generation_configuration_are_added() {
    let dir = tempfile::tempdir().unwrap();
    TinyModel::new(Architecture::Llama, json!({})).write_safetensors(dir.path(), DType::F32).unwrap();
    std::fs::write(dir.path().join("generation_config.json"), r#"{"eos_token_id": [2, 7]}"#).unwrap();
    assert_eq!(ModelSource::open(dir.path()).unwrap().config().eos_token_ids, [TokenId(2), TokenId(7)]);
    std::fs::write(dir.path().join("generation_config.json"), "{").unwrap();
    assert!(message(dir.path()).contains("generation_config.json: not a JSON object"));
    std::fs::write(dir.path().join("generation_config.json"), r#"{"eos_token_id": 128}"#).unwrap();
    assert!(message(dir.path()).contains("generation_config.json: eos_token_id or bos_token_id is 128"));
}

#[test]
fn what_is_no_model_says_what_was_expected() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    assert!(message(&path("absent")).contains("absent cannot be read"));
    assert!(message(dir.path()).ends_with(
        "has no config.json; a model is a directory with config.json and safetensors files, or a .gguf file"
    ));
    std::fs::write(path("b.gguf"), "GGUF").unwrap();
    assert!(message(dir.path()).contains("(it has 1 GGUF files: name one, such as "));
    assert!(message(&path("b.gguf")).contains("b.gguf: the file ends inside the version"));
    std::fs::write(path("notes.txt"), "notes").unwrap();
    assert!(message(&path("notes.txt")).contains("not a GGUF file"));
    std::fs::write(path("part.gguf"), GgufWriter::new().u32("split.count", 3).build()).unwrap();
    assert!(message(&path("part.gguf")).contains("is one of 3 parts; join them"));
    std::fs::write(path("config.json"), r#"{"architectures": ["BertModel"]}"#).unwrap();
    assert!(message(dir.path()).contains("config.json: architecture \"BertModel\" is not supported"));
    let config = TinyModel::new(Architecture::Llama, json!({}));
    config.write_safetensors(dir.path(), DType::F32).unwrap();
    std::fs::remove_file(path("model.safetensors")).unwrap();
    assert!(message(dir.path()).contains("has neither model.safetensors nor"));
}
