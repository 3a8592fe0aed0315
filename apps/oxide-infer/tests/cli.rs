//! The command line, the environment and the configuration file.

mod common;

use common::{oxide_infer, run};
use std::path::Path;

fn write_config(home: &Path, text: &str) -> String {
    let path = home.join("config.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The value of `--model` that `doctor` ends with.
fn effective_model(home: &Path, args: &[&str], env: &[(&str, &str)]) -> String {
    let mut command = oxide_infer(home);
    command.arg("doctor").args(args).envs(env.iter().copied());
    let (_, stdout, stderr) = run(&mut command);
    let line = stdout.lines().find_map(|line| line.strip_prefix("Model ").filter(|name| *name != "cache"));
    line.unwrap_or_else(|| panic!("no model in {stdout}{stderr}")).to_owned()
}

#[test]
fn flags_go_before_the_environment_and_that_before_the_file() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let config = write_config(home, "[doctor]\nmodel = 'org/of-file'\n");
    let file = ["--config", config.as_str()];
    let env = [("OXIDE_INFER_MODEL", "org/of-env")];
    assert_eq!(effective_model(home, &file, &[]), "org/of-file");
    assert_eq!(effective_model(home, &file, &env), "org/of-env");
    assert_eq!(
        effective_model(home, &[&file[..], &["--model", "org/of-flag"]].concat(), &env),
        "org/of-flag"
    );
    assert_eq!(effective_model(home, &[], &[("OXIDE_INFER_CONFIG", &config)]), "org/of-file");
}

#[test]
fn doctor_tells_what_the_kernels_cover_of_a_configuration_alone() {
    let home = tempfile::tempdir().unwrap();
    let model = home.path().join("model");
    std::fs::create_dir(&model).unwrap();
    let doctor = |heads: u32| {
        let config = format!(
            r#"{{"architectures": ["LlamaForCausalLM"], "hidden_size": 576, "intermediate_size": 1536,
                "num_hidden_layers": 30, "num_attention_heads": {heads}, "num_key_value_heads": 3, "vocab_size": 49152,
                "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 1e5,
                "tie_word_embeddings": true}}"#
        );
        std::fs::write(model.join("config.json"), config).unwrap();
        let (code, stdout, stderr) = run(oxide_infer(home.path()).args(["doctor", "--model"]).arg(&model));
        assert_eq!(code, 1, "{stderr}");
        // Its weights are missing.
        assert!(stdout.contains("  would not run   "), "{stdout}");
        stdout.split_once("\n  kernels         ").map(|(_, rest)| rest.to_owned()).unwrap_or_default()
    };
    assert!(doctor(9).starts_with("cover it\n"));
    // No kernels are made for heads of 32.
    let missing = doctor(18);
    assert!(missing.contains("3 operators are missing") && missing.contains("head_dim=32"), "{missing}");
    assert!(missing.contains(": head_dim is 32, artifacts have 64 or 128\n"), "{missing}");
}

#[test]
fn the_users_own_file_is_read_without_being_named() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join(".config/oxide-infer");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.toml"), "model = 'org/of-home'\n").unwrap();
    assert_eq!(effective_model(home.path(), &[], &[]), "org/of-home");
}

#[test]
fn wrong_files_are_refused_with_one_message() {
    let home = tempfile::tempdir().unwrap();
    let refuse = |text: &str| {
        let config = write_config(home.path(), text);
        let (code, _, stderr) = run(oxide_infer(home.path()).args(["--config", &config, "doctor"]));
        assert_eq!(code, 1, "{stderr}");
        assert!(stderr.starts_with("error: "), "{stderr}");
        stderr
    };
    assert!(refuse("[serve]\nprot = 1\n").contains("unknown key `serve.prot`"));
    assert!(refuse("[serve\n").contains("not valid TOML"));
    let (code, _, stderr) = run(oxide_infer(home.path()).args(["--config", "missing.toml", "doctor"]));
    assert_eq!(code, 1);
    assert!(stderr.contains("cannot read the configuration file missing.toml: No such file"), "{stderr}");
}

#[test]
fn a_wrong_value_in_the_file_is_refused_and_the_file_named() {
    let home = tempfile::tempdir().unwrap();
    let config = write_config(home.path(), "[serve]\nport = 70000\n");
    let (code, _, stderr) =
        run(oxide_infer(home.path()).args(["serve", "--model", "x", "--config", &config]));
    assert_eq!(code, 2);
    assert!(stderr.contains("'70000' for '--port <PORT>'") && stderr.contains(&config), "{stderr}");
    let (code, _, stderr) = run(oxide_infer(home.path()).args(["serve", "--model", "x", "--port", "70001"]));
    assert_eq!(code, 2);
    assert!(stderr.contains("70001") && !stderr.contains("configuration file"), "{stderr}");
}

#[test]
fn usage_errors_exit_with_2_and_say_what_is_missing() {
    let home = tempfile::tempdir().unwrap();
    for (args, expected) in [
        (&["serve"][..], "--model <MODEL>"),
        (&["run", "--model", "x"], "<PROMPT>"),
        (&["pull"], "<ORG/REPO"),
        (&["bench"], "--model <MODEL>"),
        (&["serve", "--model", "x", "--device", "gpu"], "`gpu` is not a device"),
        (&["serve", "--model", "x", "--kv-memory", "2 parsecs"], "`2 parsecs` is not a size"),
        (&["serve", "--model", "x", "--weights", "zeros"], "`zeros` names no weights; write random:SEED"),
        (&["bench", "--model", "x", "--weights", "random:-1"], "`random:-1` names no weights"),
        (&["fly"], "unrecognized subcommand 'fly'"),
    ] {
        let (code, _, stderr) = run(oxide_infer(home.path()).args(args));
        assert_eq!(code, 2, "{args:?}: {stderr}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
    }
}

#[test]
fn every_command_prints_help_with_examples() {
    let home = tempfile::tempdir().unwrap();
    let (code, stdout, _) = run(oxide_infer(home.path()).arg("--help"));
    assert_eq!(code, 0);
    assert!(stdout.contains("OXIDE_INFER_MAX_MODEL_LEN") && stdout.contains("config.toml"));
    for command in ["serve", "run", "chat", "bench", "pull", "doctor", "artifacts", "completions"] {
        let (code, stdout, _) = run(oxide_infer(home.path()).args([command, "--help"]));
        assert_eq!(code, 0);
        assert!(
            stdout.contains("Examples:") && stdout.contains(&format!("oxide-infer {command}")),
            "{command}"
        );
    }
    let (_, stdout, _) = run(oxide_infer(home.path()).args(["serve", "--help"]));
    assert!(stdout.contains("[env: OXIDE_INFER_PORT=]") && stdout.contains("[default: 8000]"), "{stdout}");
    let (code, stdout, _) = run(oxide_infer(home.path()).args(["run", "--version"]));
    assert_eq!((code, stdout.trim().ends_with(env!("CARGO_PKG_VERSION"))), (0, true));
}

#[test]
fn keys_are_not_shown_in_help() {
    let home = tempfile::tempdir().unwrap();
    let config = write_config(home.path(), "[serve]\napi-key = ['file-secret']\n");
    let mut command = oxide_infer(home.path());
    command
        .args(["serve", "--help"])
        .env("OXIDE_INFER_API_KEY", "env-secret")
        .env("OXIDE_INFER_CONFIG", &config);
    let (_, stdout, _) = run(&mut command);
    assert!(stdout.contains("OXIDE_INFER_API_KEY") && !stdout.contains("secret"), "{stdout}");
}

#[test]
fn completions_are_scripts_that_know_the_options() {
    let home = tempfile::tempdir().unwrap();
    for (shell, mark) in
        [("bash", "_oxide__infer()"), ("zsh", "#compdef oxide-infer"), ("fish", "complete -c oxide-infer")]
    {
        let (code, stdout, _) = run(oxide_infer(home.path()).args(["completions", shell]));
        assert_eq!(code, 0);
        assert!(stdout.contains(mark) && stdout.contains("max-model-len"), "{shell}");
    }
    let script = home.path().join("completions.bash");
    std::fs::write(&script, run(oxide_infer(home.path()).args(["completions", "bash"])).1).unwrap();
    let checked = std::process::Command::new("bash").arg("-n").arg(&script).status().unwrap();
    assert!(checked.success(), "bash does not parse its completions");
}

#[test]
fn the_doctor_reports_and_judges_a_model() {
    let home = tempfile::tempdir().unwrap();
    let (code, stdout, _) = run(oxide_infer(home.path()).arg("doctor"));
    assert_eq!(code, 0);
    for part in ["CPU", "threads", "features", "GPU", "driver", "Model cache", ".cache/huggingface/hub"] {
        assert!(stdout.contains(part), "no {part} in {stdout}");
    }
    let (code, stdout, _) = run(oxide_infer(home.path()).args(["doctor", "--model", "./missing.gguf"]));
    assert_eq!(code, 1);
    assert!(stdout.contains("would not run   the model ./missing.gguf does not exist"), "{stdout}");
    let (code, stdout, _) = run(oxide_infer(home.path()).args(["doctor", "--model", "org/absent"]));
    assert_eq!(code, 1);
    assert!(stdout.contains("run `oxide-infer pull org/absent`"), "{stdout}");
}

#[test]
fn artifacts_of_every_provider_are_listed_verified_and_shown() {
    let home = tempfile::tempdir().unwrap();
    let (code, listed, stderr) = run(oxide_infer(home.path()).args(["artifacts", "list"]));
    assert_eq!(code, 0, "{stderr}");
    assert!(listed.starts_with("NAME"), "{listed}");
    let lines: Vec<Vec<_>> = listed.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    let (code, verified, _) = run(oxide_infer(home.path()).args(["artifacts", "verify"]));
    assert_eq!(code, 0);
    for provider in ["oxide_tile", "oxide_native"] {
        let of = lines.iter().filter(|line| line[1] == provider);
        let count = of.clone().count();
        let first =
            of.clone().next().unwrap_or_else(|| panic!("the binary carries nothing of {provider}"))[0];
        let (code, stdout, _) = run(oxide_infer(home.path()).args(["artifacts", "show", first]));
        assert_eq!(code, 0);
        let manifest: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(manifest["name"], first);
        assert!(verified.contains(&format!("{provider}: {count} artifacts")), "{verified}");
    }
    let (code, _, stderr) = run(oxide_infer(home.path()).args(["artifacts", "show", "none"]));
    assert_eq!(code, 1);
    assert!(stderr.contains("no artifact \"none\""), "{stderr}");
}

#[test]
fn a_folder_of_artifacts_may_be_of_either_provider() {
    let home = tempfile::tempdir().unwrap();
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/oxide-infer-cuda/artifacts");
    for (folder, provider) in [("sm_90a", "oxide_tile: "), ("sm_90a_native", "oxide_native: ")] {
        let folder = folders.join(folder);
        let command = || oxide_infer(home.path());
        let flag = |name| command().args(["artifacts", name]).arg(&folder).arg("verify").output().unwrap();
        let variable = command().args(["artifacts", "verify"]).env("OXIDE_INFER_ARTIFACTS", &folder).output();
        for output in [flag("--artifacts"), flag("--directory"), variable.unwrap()] {
            let stdout = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert!(stdout.starts_with(provider) && stdout.lines().count() == 1, "{stdout}");
        }
    }
}

#[test]
fn artifacts_for_the_cpu_are_refused_before_a_model_is_opened() {
    let home = tempfile::tempdir().unwrap();
    // A folder in which there is no model.
    let folder = home.path().to_str().unwrap();
    let common = ["--model", folder, "--device", "cpu", "--artifacts", "kernels"];
    for command in [&["serve"][..], &["run", "hello"], &["bench"]] {
        let (code, _, stderr) = run(oxide_infer(home.path()).args(command).args(common));
        assert_eq!(code, 1, "{stderr}");
        assert!(stderr.contains("--artifacts kernels are kernels for a GPU"), "{stderr}");
        assert!(!stderr.contains("config.json"), "{stderr}");
    }
}

#[test]
fn artifacts_whose_bytes_changed_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/oxide-infer-cuda/artifacts/sm_90a");
    for entry in std::fs::read_dir(source).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), home.path().join(entry.file_name())).unwrap();
    }
    let verify = || run(oxide_infer(home.path()).args(["artifacts", "--artifacts", ".", "verify"]));
    assert_eq!(verify().0, 0);
    let cubin = std::fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().path());
    let cubin = cubin.into_iter().find(|path| path.to_str().unwrap().ends_with(".cubin.zst")).unwrap();
    let mut bytes = std::fs::read(&cubin).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(&cubin, bytes).unwrap();
    let (code, _, stderr) = verify();
    assert_eq!(code, 1);
    assert!(stderr.contains("artifact") && stderr.contains("not valid"), "{stderr}");
}
