//! What a deterministic plan promises: one order of sums in every artifact that it may use, and the same tokens and
//! log-probabilities, bit for bit, for a request in any company.

mod mixes;
mod orders;
mod speed;
mod workload;

use super::engine::Random;
use crate::record::Finding;
use anyhow::Result;
use oxide_infer_cuda::artifact::Registry;
use oxide_infer_cuda::runtime::Context;
use oxide_infer_engine::cuda::{ArtifactSource, CudaOptions, DecodeLaunch, load_cuda_on};
use oxide_infer_engine::{ModelSource, PlanGoal};
use speed::Work;
use std::sync::Arc;
use std::time::Instant;

/// Random mixes of requests.
const MIXES: usize = 200;
/// Mixes of the fastest plan, to see that the comparison sees anything.
const CONTROL: usize = 10;

/// Layers and vocabulary of the model that the mixes are of: the 1.5B shape, cut short.
const CUT: [usize; 2] = [3, 32_768];
/// The whole of it.
const WHOLE: [usize; 2] = [28, 151_936];

/// Of which the plans are timed: decode steps, a long prompt and a short one.
const WORKS: [Work; 6] = [
    Work { batch: 1, input: 128, output: 128, repeat: 3 },
    Work { batch: 1, input: 512, output: 128, repeat: 3 },
    Work { batch: 64, input: 512, output: 128, repeat: 2 },
    Work { batch: 256, input: 128, output: 64, repeat: 2 },
    Work { batch: 1, input: 4096, output: 2, repeat: 5 },
    Work { batch: 1, input: 128, output: 2, repeat: 5 },
];

/// The 1.5B shape with so many layers and such a vocabulary.
fn config([layers, vocab_size]: [usize; 2]) -> String {
    format!(
        r#"{{
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 1536, "intermediate_size": 8960,
    "num_hidden_layers": {layers}, "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": {vocab_size},
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "hidden_act": "silu",
    "tie_word_embeddings": true, "eos_token_id": 2, "bos_token_id": 1
}}"#
    )
}

const OPTIONS: CudaOptions = CudaOptions {
    max_model_len: Some(4224),
    max_batch_tokens: 4096,
    max_sequences: 256,
    kv_memory: Some(1 << 30),
    decode_launch: DecodeLaunch::Graph,
    artifacts: ArtifactSource::Embedded,
    goal: PlanGoal::Deterministic,
};

/// Of the plans that are timed.
const TIMED: CudaOptions = CudaOptions { max_batch_tokens: 8192, kv_memory: Some(8 << 30), ..OPTIONS };

pub(super) fn run(context: &Context, registry: &Arc<Registry>) -> Finding {
    let (start, mut finding) = (Instant::now(), Finding::of("deterministic"));
    if let Err(error) = orders::run(context, registry, &mut finding) {
        finding.check("orders of sums", Err(error));
    }
    if let Err(error) = requests(context, &mut finding) {
        finding.check("random mixes", Err(error));
    }
    if let Err(error) = speed::run(context, &config(WHOLE), TIMED, &WORKS, &mut finding) {
        finding.check("times of both plans", Err(error));
    }
    finding.measured.insert("seconds".to_owned(), start.elapsed().as_secs_f64());
    finding
}

fn requests(context: &Context, finding: &mut Finding) -> Result<()> {
    let source = random_model(&config(CUT))?;
    let executor = Box::new(load_cuda_on(context, &source, &OPTIONS, &mut |_| ())?);
    mixes::run(executor, MIXES, mixes::Claim::SameBits, finding)?;
    let fastest = CudaOptions { goal: PlanGoal::Fastest, ..OPTIONS };
    let executor = Box::new(load_cuda_on(context, &source, &fastest, &mut |_| ())?);
    mixes::run(executor, CONTROL, mixes::Claim::None, finding)
}

/// A model of random weights.
fn random_model(config: &str) -> Result<ModelSource> {
    let thread = format!("{:?}", std::thread::current().id());
    let dir = std::env::temp_dir().join(format!("oxide-infer-lab-{}-{thread}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    std::fs::write(dir.join("config.json"), config)?;
    let source = ModelSource::open_random(&dir, 1);
    std::fs::remove_dir_all(&dir)?;
    Ok(source?)
}

#[cfg(test)]
mod tests;
