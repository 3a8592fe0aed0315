//! The gate over the CPU, which keeps the promise, and over one that does not.

use super::mixes::{Claim, run};
use super::*;
use oxide_infer_cuda::artifact::Manifest;
use oxide_infer_cuda::driver::simulated::SimulatedDriver;
use oxide_infer_engine::cpu::{CpuOptions, KvMemory};
use oxide_infer_engine::{
    EngineBatch, Executor, ExecutorError, ExecutorLimits, StepMix, StepOutput, load_cpu,
};

const TINY: &str = r#"{
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": true, "eos_token_id": 2, "bos_token_id": 1
}"#;

fn cpu(step_mix: StepMix, fault: Fault) -> Box<dyn Executor> {
    let source = random_model(TINY).unwrap();
    let options = CpuOptions {
        threads: std::num::NonZeroUsize::new(2),
        max_model_len: Some(320),
        max_batch_tokens: 256,
        max_sequences: 32,
        kv_memory: KvMemory(8 << 20),
    };
    let inner = Box::new(load_cpu(&source, &options, &mut |_| ()).unwrap());
    Box::new(Altered { inner, step_mix, fault, rows: 0 })
}

/// What an executor does that the CPU does not.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// One log-probability of a step of several rows is the next number.
    LastBit,
}

struct Altered {
    inner: Box<dyn Executor>,
    step_mix: StepMix,
    fault: Fault,
    rows: usize,
}

impl Executor for Altered {
    fn limits(&self) -> ExecutorLimits {
        ExecutorLimits { step_mix: self.step_mix, ..self.inner.limits() }
    }

    fn submit(&mut self, batch: &EngineBatch) -> Result<(), ExecutorError> {
        self.rows = batch.rows.len();
        self.inner.submit(batch)
    }

    fn collect(&mut self, output: &mut StepOutput) -> Result<(), ExecutorError> {
        self.inner.collect(output)?;
        if self.fault == Fault::LastBit && self.rows > 4 {
            let sampled = output.samples.iter_mut().filter_map(|sample| sample.outcome.as_mut().ok());
            if let Some(listed) = sampled.filter_map(|sampled| sampled.logprobs.as_mut()).next() {
                listed.chosen.logprob = listed.chosen.logprob.next_down();
            }
        }
        Ok(())
    }
}

fn gate(step_mix: StepMix, fault: Fault, claim: Claim) -> Finding {
    let mut finding = Finding::of("deterministic");
    run(cpu(step_mix, fault), 20, claim, &mut finding).unwrap();
    finding
}

#[test]
fn the_cpu_passes_whether_steps_are_mixed_or_not() {
    for step_mix in [StepMix::Mixed, StepMix::Apart] {
        let finding = gate(step_mix, Fault::None, Claim::SameBits);
        assert!(finding.is_pass(), "{finding}");
        assert!(finding.passed["answers in random mixes"] > 100, "{finding}");
    }
}

#[test]
fn one_other_bit_of_a_log_probability_fails_the_gate_and_is_counted_where_nothing_is_claimed() {
    let finding = gate(StepMix::Apart, Fault::LastBit, Claim::SameBits);
    assert!(!finding.is_pass());
    assert!(finding.failures[0].contains("has another answer"), "{}", finding.failures[0]);
    let finding = gate(StepMix::Apart, Fault::LastBit, Claim::None);
    assert!(finding.measured["answers of the fastest plan that were others"] > 0.0, "{finding}");
    assert!(finding.failures.is_empty());
}

#[test]
fn every_order_of_products_is_reached_on_a_simulated_device() {
    let driver = SimulatedDriver::new();
    let context = Context::primary_on(driver.clone(), 0).unwrap();
    let registry = Arc::new(Registry::embedded(oxide_infer_cuda::artifact::Target::hopper()).unwrap());
    let mut finding = Finding::of("deterministic");
    orders::run(&context, &registry, &mut finding).unwrap();
    assert!(finding.is_pass(), "{finding}");
    // Those whose order is known; models have no products of f16.
    let kernels = [
        "gemm.dense_small",
        "prefill_gemm.dense",
        "joint_gemm.dense",
        "chained_gemm.weighted",
        "chained_gemm.scaled_swiglu",
        "chained_gemm.scaled_projected",
        "chained_tiles.scaled_swiglu",
    ];
    let ranges = |product: &Manifest| {
        product.source.kernel.starts_with("chained_gemv.") && product.source.schedule.contains_key("block_k")
    };
    let products = registry.artifacts().map(|artifact| artifact.manifest()).filter(|product| {
        (kernels.contains(&product.source.kernel.as_str()) || ranges(product))
            && !product.name.contains(".f16.")
    });
    let compared = |product: &Manifest| {
        let sizes = orders::SHAPES.iter().flat_map(|&size| orders::ROWS.map(|[_, rows]| (size, rows)));
        let dimensions = sizes.map(|(size, rows)| orders::dimensions(product, rows, size));
        dimensions.filter(|dimensions| product.out_of_domain(dimensions).is_none()).count()
    };
    assert_eq!(finding.passed["products of one order"], products.map(compared).sum::<usize>());
    assert_eq!(driver.violations(), Vec::<String>::new());
}

#[test]
fn plans_are_timed_on_a_simulated_device() {
    let context = Context::primary_on(SimulatedDriver::new(), 0).unwrap();
    let mut finding = Finding::of("deterministic");
    // Room for one sequence of the greatest length.
    let works = [Work { batch: 3, input: 20, output: 12, repeat: 1 }];
    let options =
        CudaOptions { kv_memory: Some(16 << 20), max_sequences: 16, max_batch_tokens: 64, ..OPTIONS };
    speed::run(&context, &config([1, 512]), options, &works, &mut finding).unwrap();
    for plan in ["fastest plan", "deterministic plan", "deterministic plan of 4 sequences"] {
        let measured = &finding.measured[&format!("decode step of 3 x 20 in 12 out, {plan}, ms")];
        assert!(*measured > 0.0);
    }
}
