//! `oxide-infer pull` against a hub on loopback.

mod common;

use common::hub::{COMMIT, Hub, Mood};
use common::{dead_address, oxide_infer, run};
use std::path::{Path, PathBuf};
use std::process::Command;

const WEIGHTS: usize = 200_000;

fn weights() -> Vec<u8> {
    (0..WEIGHTS).map(|i| (i % 251) as u8).collect()
}

fn safetensors_repo() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("README.md", b"read me".to_vec()),
        ("config.json", b"{}".to_vec()),
        ("generation_config.json", b"{\"eos_token_id\": 2}".to_vec()),
        ("model.safetensors", weights()),
        ("onnx/model.onnx", vec![1; 5000]),
        ("pytorch_model.bin", vec![2; 5000]),
        ("tokenizer.json", b"{\"model\": {}}".to_vec()),
    ]
}

fn pull(home: &Path, endpoint: &str, repo: &str) -> Command {
    let mut command = oxide_infer(home);
    command.args(["pull", repo]).env("HF_ENDPOINT", endpoint).env("HF_HOME", home.join("hf"));
    command
}

fn snapshot(home: &Path, folder: &str) -> PathBuf {
    home.join("hf/hub").join(folder).join("snapshots").join(COMMIT)
}

#[test]
fn what_the_engine_needs_lands_in_the_usual_layout_and_only_once() {
    let home = tempfile::tempdir().unwrap();
    let hub = Hub::start("org/tiny", safetensors_repo(), Mood::Open);
    let (code, stdout, stderr) = run(&mut pull(home.path(), &hub.url(), "org/tiny"));
    assert_eq!(code, 0, "{stderr}");
    let folder = snapshot(home.path(), "models--org--tiny");
    assert_eq!(stdout.trim(), folder.to_str().unwrap());
    assert_eq!(
        hub.downloads(),
        ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"]
    );
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), weights());
    let pointer = std::fs::read_link(folder.join("model.safetensors")).unwrap();
    assert!(pointer.starts_with("../../blobs"), "{}", pointer.display());
    let named = std::fs::read_to_string(home.path().join("hf/hub/models--org--tiny/refs/main")).unwrap();
    assert_eq!(named, COMMIT);
    assert!(stderr.contains("downloading org/tiny, 4 files"), "plain log lines are expected here: {stderr}");

    let (code, _, stderr) = run(&mut pull(home.path(), &hub.url(), "org/tiny"));
    assert_eq!((code, hub.downloads().len()), (0, 0), "{stderr}");
}

#[test]
fn a_half_file_of_an_earlier_attempt_is_replaced_and_whole_files_are_kept() {
    let home = tempfile::tempdir().unwrap();
    let hub = Hub::start("org/tiny", safetensors_repo(), Mood::Open);
    assert_eq!(run(&mut pull(home.path(), &hub.url(), "org/tiny")).0, 0);
    hub.downloads();
    // As an interrupted download leaves it: no pointer, and a part of the blob.
    let pointer = snapshot(home.path(), "models--org--tiny").join("model.safetensors");
    let blob = pointer.canonicalize().unwrap();
    std::fs::remove_file(&pointer).unwrap();
    std::fs::remove_file(&blob).unwrap();
    std::fs::write(blob.with_extension("incomplete"), &weights()[..777]).unwrap();

    let mut offline = pull(home.path(), &hub.url(), "org/tiny");
    let (code, _, stderr) = run(offline.env("HF_HUB_OFFLINE", "1"));
    assert_eq!(code, 1, "a half file must not count as cached");
    assert!(stderr.contains("not in the cache"), "{stderr}");

    let (code, _, stderr) = run(&mut pull(home.path(), &hub.url(), "org/tiny"));
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(hub.downloads(), ["model.safetensors"]);
    assert_eq!(std::fs::read(&pointer).unwrap(), weights());
    assert!(!blob.with_extension("incomplete").exists());
}

#[test]
fn offline_uses_the_cache_only() {
    let home = tempfile::tempdir().unwrap();
    let hub = Hub::start("org/tiny", safetensors_repo(), Mood::Open);
    let offline = |repo: &str| {
        let mut command = pull(home.path(), &hub.url(), repo);
        command.env("HF_HUB_OFFLINE", "1");
        command
    };
    let (code, _, stderr) = run(&mut offline("org/tiny"));
    assert_eq!(code, 1);
    assert!(stderr.contains("org/tiny is not in the cache"), "{stderr}");
    assert!(stderr.contains("unset HF_HUB_OFFLINE and run `oxide-infer pull org/tiny`"), "{stderr}");
    assert_eq!(run(&mut pull(home.path(), &hub.url(), "org/tiny")).0, 0);
    hub.downloads();
    let (code, stdout, stderr) = run(&mut offline("org/tiny"));
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(stdout.trim(), snapshot(home.path(), "models--org--tiny").to_str().unwrap());
    let (code, ..) = run(&mut offline(&format!("org/tiny@{COMMIT}")));
    assert_eq!((code, hub.downloads().len()), (0, 0));
}

#[test]
fn a_model_option_downloads_what_is_missing_and_nothing_when_offline() {
    let home = tempfile::tempdir().unwrap();
    let hub = Hub::start("org/tiny", safetensors_repo(), Mood::Open);
    let ask = |offline: &str| {
        let mut command = oxide_infer(home.path());
        command.args(["run", "--model", "org/tiny", "Hello"]).env("HF_ENDPOINT", hub.url());
        run(command.env("HF_HOME", home.path().join("hf")).env("HF_HUB_OFFLINE", offline))
    };
    let (code, _, stderr) = ask("1");
    assert_eq!((code, hub.downloads().len()), (1, 0));
    assert!(stderr.contains("run `oxide-infer pull org/tiny`"), "{stderr}");
    // It is downloaded, and is then no model: its configuration is empty.
    let (code, _, stderr) = ask("0");
    assert_eq!((code, hub.downloads().len()), (1, 4), "{stderr}");
    assert!(stderr.contains("error: ") && stderr.contains("config.json"), "{stderr}");
}

#[test]
fn when_the_hub_cannot_be_reached_a_complete_cache_is_used() {
    let home = tempfile::tempdir().unwrap();
    let dead = format!("http://{}", dead_address());
    let (code, _, stderr) = run(&mut pull(home.path(), &dead, "org/tiny"));
    assert_eq!(code, 1);
    assert!(stderr.contains(&format!("{dead} cannot be reached to fetch org/tiny")), "{stderr}");
    let hub = Hub::start("org/tiny", safetensors_repo(), Mood::Open);
    assert_eq!(run(&mut pull(home.path(), &hub.url(), "org/tiny")).0, 0);
    let (code, _, stderr) = run(&mut pull(home.path(), &dead, "org/tiny"));
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("using the cached org/tiny"), "{stderr}");
}

#[test]
fn refusals_say_what_to_do() {
    let home = tempfile::tempdir().unwrap();
    let hub = Hub::start("org/tiny", safetensors_repo(), Mood::Open);
    let (code, _, stderr) = run(&mut pull(home.path(), &hub.url(), "org/missing"));
    assert_eq!(code, 1);
    assert!(stderr.contains("no repository org/missing") && stderr.contains("404"), "{stderr}");
    let (_, _, stderr) = run(&mut pull(home.path(), &hub.url(), "org/tiny@v9"));
    assert!(stderr.contains("no revision `v9`"), "{stderr}");
    let gated = Hub::start("org/tiny", safetensors_repo(), Mood::Gated);
    let (_, _, stderr) = run(&mut pull(home.path(), &gated.url(), "org/tiny"));
    assert!(stderr.contains("accept the model's terms") && stderr.contains("403"), "{stderr}");
    let (_, _, stderr) = run(&mut pull(home.path(), &hub.url(), "tiny"));
    assert!(stderr.contains("\"tiny\" is not a hub id"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "one clear message is expected: {stderr}");
}

#[test]
fn a_private_repository_needs_a_token_from_variable_or_file() {
    let hub = Hub::start("org/tiny", safetensors_repo(), Mood::Private);
    let home = tempfile::tempdir().unwrap();
    let (code, _, stderr) = run(&mut pull(home.path(), &hub.url(), "org/tiny"));
    assert_eq!(code, 1);
    assert!(stderr.contains("401") && stderr.contains("HF_TOKEN"), "{stderr}");
    let (code, _, stderr) = run(pull(home.path(), &hub.url(), "org/tiny").env("HF_TOKEN", "wrong"));
    assert_eq!(code, 1, "{stderr}");
    let (code, _, stderr) = run(pull(home.path(), &hub.url(), "org/tiny").env("HF_TOKEN", "secret"));
    assert_eq!(code, 0, "{stderr}");

    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("hf")).unwrap();
    std::fs::write(home.path().join("hf/token"), "secret\n").unwrap();
    let (code, _, stderr) = run(&mut pull(home.path(), &hub.url(), "org/tiny"));
    assert_eq!(code, 0, "{stderr}");
}

#[test]
fn the_cache_folder_can_be_chosen() {
    let home = tempfile::tempdir().unwrap();
    let hub = Hub::start("org/tiny", safetensors_repo(), Mood::Open);
    let cache = home.path().join("elsewhere");
    let (code, stdout, stderr) = run(pull(home.path(), &hub.url(), "org/tiny").env("HF_HUB_CACHE", &cache));
    assert_eq!(code, 0, "{stderr}");
    assert!(Path::new(stdout.trim()).starts_with(&cache), "{stdout}");
    let (code, stdout, _) = run(oxide_infer(home.path()).arg("doctor").env("HF_HUB_CACHE", &cache));
    assert_eq!(code, 0);
    assert!(stdout.contains("org/tiny@main") && stdout.contains("complete"), "{stdout}");
}

#[test]
fn bytes_that_do_not_match_their_hash_are_refused_and_removed() {
    let home = tempfile::tempdir().unwrap();
    let hub = Hub::start("org/tiny", safetensors_repo(), Mood::Damaging);
    let (code, _, stderr) = run(&mut pull(home.path(), &hub.url(), "org/tiny"));
    assert_eq!(code, 1);
    assert!(stderr.contains("model.safetensors is damaged: SHA-256"), "{stderr}");
    let folder = snapshot(home.path(), "models--org--tiny");
    assert!(!folder.join("model.safetensors").exists());
    let blobs: Vec<_> =
        std::fs::read_dir(home.path().join("hf/hub/models--org--tiny/blobs")).unwrap().collect();
    assert!(blobs.iter().all(|blob| blob.as_ref().unwrap().metadata().unwrap().len() < 1000));
}

#[test]
fn shards_come_with_their_index() {
    let index = br#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    let files = vec![
        ("config.json", b"{}".to_vec()),
        ("consolidated.safetensors", vec![9; 4000]),
        ("model-00001-of-00002.safetensors", vec![1; 3000]),
        ("model-00002-of-00002.safetensors", vec![2; 3000]),
        ("model.safetensors.index.json", index.to_vec()),
        // Files of the same bytes share a blob, and then only one of them is downloaded.
        ("tokenizer.json", b"{\"model\": {}}".to_vec()),
    ];
    let home = tempfile::tempdir().unwrap();
    let hub = Hub::start("org/big", files, Mood::Open);
    let (code, _, stderr) = run(&mut pull(home.path(), &hub.url(), "org/big@v1"));
    assert_eq!(code, 0, "{stderr}");
    let expected = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ];
    assert_eq!(hub.downloads(), expected);
    let named = std::fs::read_to_string(home.path().join("hf/hub/models--org--big/refs/v1")).unwrap();
    assert_eq!(named, COMMIT);
}

#[test]
fn one_of_several_ggufs_is_chosen_by_name() {
    let files = vec![("m-Q4_0.gguf", vec![4; 2000]), ("m-Q8_0.gguf", vec![8; 2000])];
    let home = tempfile::tempdir().unwrap();
    let hub = Hub::start("org/quants", files, Mood::Open);
    let (code, _, stderr) = run(&mut pull(home.path(), &hub.url(), "org/quants"));
    assert_eq!(code, 1);
    assert!(stderr.contains("m-Q4_0.gguf, m-Q8_0.gguf"), "{stderr}");
    let (code, stdout, stderr) = run(&mut pull(home.path(), &hub.url(), "org/quants:q8_0"));
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.trim().ends_with("m-Q8_0.gguf"), "{stdout}");
    assert_eq!(hub.downloads(), ["m-Q8_0.gguf"]);
}
