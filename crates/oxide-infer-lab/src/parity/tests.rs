use super::*;
use oxide_infer::DType;
use oxide_infer_engine::model::Architecture;
use oxide_infer_engine::testing::TinyModel;
use serde_json::{Value, json};

const MODES: [Mode; 5] = [Mode::Alone, Mode::Batched, Mode::Chunked, Mode::Preempted, Mode::Warm];

struct Setup {
    dir: tempfile::TempDir,
    model: PathBuf,
}

impl Setup {
    /// A tiny model of random weights, in a directory.
    fn tiny() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let fields = json!({"max_position_embeddings": 512});
        TinyModel::new(Architecture::Qwen2, fields).write_safetensors(dir.path(), DType::BF16).unwrap();
        Self { model: dir.path().to_owned(), dir }
    }

    fn run(&self, mode: Mode, cases: &Value) -> Result<(Vec<f32>, Value)> {
        let path = |name: &str| self.dir.path().join(name);
        std::fs::write(path("cases.json"), cases.to_string()).unwrap();
        let options = ParityOptions {
            model: self.model.clone(),
            cases: path("cases.json"),
            logits: path("logits"),
            mode,
            device: Device::Cpu,
            chunk: 50,
            kv_mib: Some(64),
        };
        run(&options)?;
        let bytes = std::fs::read(path("logits")).unwrap();
        let logits = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let report = serde_json::from_slice(&std::fs::read(path("logits.json")).unwrap()).unwrap();
        Ok((logits, report))
    }
}

/// Cases of these prompt lengths, each going on for `new_tokens` that no model chose.
fn cases(lengths: &[u32], new_tokens: u32) -> Value {
    let token = |case: u32, i: u32| (i * i * 3 + 7 * i + 11 * case + 5) % 128;
    let cases = lengths.iter().zip(0..).map(|(&length, case)| {
        let all: Vec<u32> = (0..length + new_tokens).map(|i| token(case, i)).collect();
        let (prompt, continuation) = all.split_at(length as usize);
        json!({"id": format!("case {case}"), "prompt": prompt, "continuation": continuation})
    });
    json!({"cases": cases.collect::<Vec<_>>()})
}

#[test]
fn every_mode_gives_the_same_bits_and_does_what_its_name_says() {
    let setup = Setup::tiny();
    let cases = cases(&[1, 2, 63, 64, 65, 130, 200], 64);
    let runs = MODES.map(|mode| setup.run(mode, &cases).unwrap());
    let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
    for (mode, (logits, _)) in MODES.iter().zip(&runs) {
        assert_eq!(logits.len(), 7 * 64 * 128);
        assert!(bits(logits) == bits(&runs[0].0), "{mode:?} gives other logits than alone");
    }
    let number = |run: usize, name: &str| runs[run].1[name].as_u64().unwrap();
    assert_eq!((number(0, "most_rows"), number(0, "inner_chunks")), (1, 0));
    assert_eq!(number(1, "most_rows"), 7);
    // Chunks of 50 before the last: 1 of 63, 64 and 65 tokens, 2 of 130, 3 of 200.
    assert_eq!(number(2, "inner_chunks"), 3 + 2 + 3);
    // 1 and 65 tokens and the 63 that are fed back end with a page and need no other.
    assert_eq!(number(3, "preemptions"), 5);
    // Whole pages that end before a prompt's last token: 1 of 65 tokens, 2 of 130, 3 of 200.
    assert_eq!(number(4, "cached_tokens"), 6 * 64);
}

/// The same numbers by another way: log-probabilities that the engine reports for a prompt.
#[test]
fn logits_are_those_of_the_given_tokens_and_not_of_the_models_own() {
    let setup = Setup::tiny();
    let (one, _) = setup.run(Mode::Alone, &cases(&[70], 8)).unwrap();
    // With the first three tokens of the continuation in the prompt, the rest is the same.
    let mut moved = cases(&[70], 8);
    let case = &mut moved["cases"][0];
    let continuation = case["continuation"].as_array().unwrap().clone();
    case["prompt"].as_array_mut().unwrap().extend_from_slice(&continuation[..3]);
    case["continuation"] = json!(continuation[3..]);
    let (two, _) = setup.run(Mode::Alone, &moved).unwrap();
    assert_eq!(one[3 * 128..], two);
    // The model would have chosen other tokens.
    let best = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
    let own: Vec<_> = one.chunks(128).map(best).collect();
    assert!(own.iter().zip(&continuation).any(|(own, given)| json!(own) != *given));
}

#[test]
fn the_demo_model_gives_the_oracles_tokens_and_margins() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let model = match std::env::var_os("OXIDE_INFER_TEST_MODEL") {
        Some(path) => PathBuf::from(path),
        None => workspace.join("models/SmolLM2-135M-Instruct.Q4_1.gguf"),
    };
    assert!(model.is_file(), "{} is not there: `make model` fetches it", model.display());
    let text = std::fs::read_to_string(workspace.join("testdata/cases/smollm2.json")).unwrap();
    let oracle: Value = serde_json::from_str(&text).unwrap();
    let oracle = &oracle["cases"].as_array().unwrap()[..2];
    let cases: Vec<_> = oracle
        .iter()
        .map(|case| json!({"id": case["id"], "prompt": case["prompt_ids"], "continuation": case["new_ids"]}))
        .collect();
    let setup = Setup { dir: tempfile::tempdir().unwrap(), model };
    let (logits, _) = setup.run(Mode::Batched, &json!({"cases": cases})).unwrap();
    let mut rows = logits.chunks(49_152);
    for case in oracle {
        for step in 0..48 {
            let row = rows.next().unwrap();
            let (best, second) = (&case["new_ids"][step], &case["top2_ids"][step]);
            let margin = row[best.as_u64().unwrap() as usize] - row[second.as_u64().unwrap() as usize];
            assert!((f64::from(margin) - case["margins"][step].as_f64().unwrap()).abs() < 1e-2);
        }
    }
}

#[test]
fn cases_that_cannot_be_run_are_refused() {
    let setup = Setup::tiny();
    let refused = |mode, cases: Value| format!("{:#}", setup.run(mode, &cases).unwrap_err());
    let alone = |cases| refused(Mode::Alone, cases);
    let case = |prompt: &[u32], continuation: &[u32]| json!({"id": "x", "prompt": prompt, "continuation": continuation});
    assert!(alone(json!({"cases": []})).contains("there are no cases"));
    assert!(alone(json!({"cases": [case(&[1], &[])]})).contains("continuations are empty"));
    assert!(alone(json!({"cases": [case(&[], &[1])]})).contains("the prompt of \"x\" is empty"));
    let two = json!({"cases": [case(&[1], &[2]), case(&[3], &[2, 4])]});
    assert!(alone(two).contains("\"x\" goes on for 2 tokens, the first case for 1"));
    let twice = json!({"cases": [case(&[1], &[2]), case(&[1], &[3])]});
    assert!(alone(twice).contains("is an earlier one's too"));
    assert!(
        alone(json!({"cases": [case(&[1], &[128])]})).contains("token 128 is not in the vocabulary of 128")
    );
    assert!(alone(cases(&[500], 64)).contains("a case has 564 tokens; the executor was planned for 512"));
    // A mode that did not do what it is for is no proof.
    assert!(refused(Mode::Chunked, cases(&[50], 4)).contains("no prompt is longer than the chunk of 50"));
    assert!(refused(Mode::Batched, cases(&[50], 4)).contains("no two of the cases were in one step"));
    assert!(refused(Mode::Warm, cases(&[50], 4)).contains("no prompt was found in the prefix cache"));
    assert!(refused(Mode::Preempted, cases(&[1], 4)).contains("no case was preempted"));
}
