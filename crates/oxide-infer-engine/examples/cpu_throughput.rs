//! How fast one sequence runs on the CPU, and how much memory the process ever had.
//!
//!     cargo run --release -p oxide-infer-engine --example cpu_throughput -- MODEL [PROMPT_TOKENS] [NEW_TOKENS] [THREADS]

use oxide_infer::{TokenId, sampling::SamplingParams};
use oxide_infer_engine::cpu::{CpuOptions, KvMemory};
use oxide_infer_engine::request::{Masking, StopConditions};
use oxide_infer_engine::{Engine, EngineConfig, EngineEvent, EngineRequest, ModelSource, load_cpu};
use std::error::Error;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let model =
        arguments.get(1).ok_or("usage: cpu_throughput MODEL [PROMPT_TOKENS] [NEW_TOKENS] [THREADS]")?;
    let number = |at: usize, default: usize| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let (prompt_tokens, new_tokens) = (number(2, 512)?, number(3, 128)?);
    let threads = NonZeroUsize::new(number(4, 0)?);

    let started = Instant::now();
    let source = ModelSource::open(Path::new(model))?;
    println!("{}", source.config());
    let options = CpuOptions { threads, kv_memory: KvMemory(64 << 20), ..CpuOptions::default() };
    let executor = load_cpu(&source, &options, &mut |_| ())?;
    println!("loaded in {:.2?}, {} threads", started.elapsed(), executor.threads());
    let engine = Engine::start(Box::new(executor), EngineConfig::default())?;

    for run in 0..3u32 {
        // Other tokens in every run, so that no prompt is found in the prefix cache.
        let vocab_size = source.config().vocab_size as u32;
        let prompt: Arc<[TokenId]> = (0..prompt_tokens as u32)
            .map(|i| TokenId((i * 7919 + run * 104_729 + 17) % vocab_size))
            .collect();
        let request = EngineRequest {
            prompt,
            choices: NonZeroU32::MIN,
            sampling: Arc::new(SamplingParams { temperature: 0.0, ..SamplingParams::default() }),
            stop: StopConditions { max_tokens: new_tokens as u32, ..StopConditions::default() },
            logprobs: None,
            prompt_logprobs: None,
            masking: Masking::None,
            pooling: None,
        };
        let started = Instant::now();
        let mut first = None;
        let mut tokens = 0;
        let mut stream = engine.submit(request)?;
        while let Some(event) = stream.blocking_next() {
            if let EngineEvent::Token { .. } = event {
                first.get_or_insert_with(Instant::now);
                tokens += 1;
            }
        }
        let first = first.ok_or("no token came")?;
        println!(
            "prefill {:.1} tok/s, decode {:.1} tok/s",
            prompt_tokens as f64 / (first - started).as_secs_f64(),
            f64::from(tokens - 1) / first.elapsed().as_secs_f64()
        );
    }
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        status
            .lines()
            .filter(|line| line.starts_with("VmHWM") || line.starts_with("VmRSS"))
            .for_each(|line| println!("{line}"));
    }
    println!("files {} kB, KV {} kB", source.checkpoint().file_bytes() / 1024, options.kv_memory.0 / 1024);
    Ok(())
}
