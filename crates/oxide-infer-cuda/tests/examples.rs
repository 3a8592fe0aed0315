//! The examples run to their end, or say what the machine lacks.

use oxide_infer_cuda::{Probe, probe};
use std::path::PathBuf;
use std::process::{Command, Output};

fn run(example: &str, arguments: &[&str]) -> Output {
    // Tests lie in `deps`, beside the folder of examples, which `cargo test` builds before it runs any test.
    let test = std::env::current_exe().unwrap();
    let path: PathBuf = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(example);
    assert!(path.exists(), "{} is missing: cargo build -p oxide-infer-cuda --examples", path.display());
    Command::new(path).args(arguments).output().unwrap()
}

/// With a device an example may also lack a library, or artifacts for that device.
fn has_device() -> bool {
    matches!(probe(), Probe::Driver { devices, .. } if !devices.is_empty())
}

#[test]
fn examples_say_what_is_missing_and_end_with_69() {
    for (example, arguments) in
        [("embed_one_operator", &[][..]), ("adopt_gemm", &["cublas_lt"]), ("adopt_gemm", &["oxide_tile"])]
    {
        let output = run(example, arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => assert!(has_device(), "{example} found a device"),
            Some(69) => assert!(stderr.starts_with("missing: "), "{example}: {stderr}"),
            code => panic!("{example} ended with {code:?}: {stderr}"),
        }
        if !has_device() {
            assert!(stderr.contains("CUDA"), "{example} should name the driver or the device: {stderr}");
        }
    }
}

#[test]
fn a_provider_that_is_none_is_refused_with_2() {
    let output = run("adopt_gemm", &["cublas"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "cublas is no provider: cublas_lt or oxide_tile\n");
}
