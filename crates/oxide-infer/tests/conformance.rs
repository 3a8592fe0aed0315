//! The suite against the references, which must pass it, and against providers that are wrong in one way each, which must
//! not.

use oxide_infer::activation::swiglu;
use oxide_infer::attention::{paged_decode, paged_prefill};
use oxide_infer::conformance::{Operators, Reference, Refusal, Report, run, run_contracts};
use oxide_infer::embedding::gather;
use oxide_infer::gemm::{dense, dense_swiglu};
use oxide_infer::kv_cache::paged_append;
use oxide_infer::normalization::rms_norm;
use oxide_infer::position::rope::{self, Pairing};
use oxide_infer::sampling::{self, LogitsRow, Sampled};
use oxide_infer::{Contract, DType, FloatView, Spec, TokenId, View, Weight, WeightFormat};

#[test]
fn the_references_pass_every_case() {
    let report = run(&mut Reference);
    assert!(report.covers(Contract::ALL), "{report}");
}

#[test]
fn a_provider_that_has_nothing_fails_nothing_and_covers_nothing() {
    struct Empty;
    impl Operators for Empty {}
    let report = run(&mut Empty);
    assert!(report.failures().is_empty(), "{report}");
    assert!(
        Contract::ALL.iter().all(|&contract| report.passed(contract) == 0 && !report.covers(&[contract]))
    );
}

/// Runs one contract by a provider that is wrong, and gives back what the suite found.
fn failures(provider: &mut dyn Operators, contract: Contract) -> Report {
    let report = run_contracts(provider, &[contract]);
    assert!(!report.failures().is_empty(), "the suite found nothing:\n{report}");
    report
}

fn says(report: &Report, what: &str) -> bool {
    report.failures().iter().any(|failure| failure.what.contains(what))
}

#[test]
fn an_epsilon_left_out_is_found() {
    struct Wrong;
    impl Operators for Wrong {
        fn rms_norm(
            &mut self,
            spec: &rms_norm::Spec,
            operands: rms_norm::Operands<'_>,
        ) -> Result<(), Refusal> {
            let config = rms_norm::Config { epsilon: 1e-12, ..spec.config().clone() };
            Ok(rms_norm::reference(&rms_norm::Spec::new(config).unwrap(), operands)?)
        }
    }
    let report = failures(&mut Wrong, Contract::RMS_NORM);
    assert!(says(&report, "of output"), "{report}");
}

#[test]
fn a_residual_that_is_not_updated_is_found() {
    struct Wrong;
    impl Operators for Wrong {
        fn rms_norm(
            &mut self,
            spec: &rms_norm::Spec,
            mut operands: rms_norm::Operands<'_>,
        ) -> Result<(), Refusal> {
            operands.check(spec)?;
            let Some(mut residual) = operands.residual.take() else {
                return Ok(rms_norm::reference(spec, operands)?);
            };
            let last = residual.shape().map(|extent| extent.saturating_sub(1));
            let before = (!residual.layout().is_empty()).then(|| residual.at(last));
            rms_norm::reference(
                spec,
                rms_norm::Operands { residual: Some(residual.reborrow()), ..operands },
            )?;
            if let Some(before) = before {
                residual.set(last, before);
            }
            Ok(())
        }
    }
    let report = failures(&mut Wrong, Contract::RMS_NORM);
    assert!(says(&report, "of residual"), "{report}");
}

#[test]
fn the_other_pairing_is_found() {
    struct Wrong;
    impl Operators for Wrong {
        fn rope(&mut self, spec: &rope::Spec, operands: rope::Operands<'_>) -> Result<(), Refusal> {
            let config = rope::Config { pairing: Pairing::Interleaved, ..spec.config().clone() };
            Ok(rope::reference(&rope::Spec::new(config).unwrap(), operands)?)
        }
    }
    failures(&mut Wrong, Contract::ROPE);
}

#[test]
fn a_write_past_the_end_is_found() {
    struct Wrong;
    impl Operators for Wrong {
        fn swiglu(&mut self, spec: &swiglu::Spec, mut operands: swiglu::Operands<'_>) -> Result<(), Refusal> {
            operands.check(spec)?;
            let end = operands.output.layout().span();
            if let Some(mut output) = operands.output.reborrow().typed::<f32>() {
                output.data_mut()[end] = 0.0;
            }
            Ok(swiglu::reference(spec, operands)?)
        }
    }
    let report = failures(&mut Wrong, Contract::SWIGLU);
    assert!(says(&report, "where nothing may be"), "{report}");
}

#[test]
fn an_element_left_unwritten_is_found() {
    struct Wrong;
    impl Operators for Wrong {
        fn gather(&mut self, spec: &gather::Spec, mut operands: gather::Operands<'_>) -> Result<(), Refusal> {
            operands.check(spec)?;
            let [tokens, hidden_size] = operands.output.shape();
            let last = [tokens.saturating_sub(1), hidden_size - 1];
            let before = (tokens > 0).then(|| operands.output.at(last));
            gather::reference(spec, gather::Operands { output: operands.output.reborrow(), ..operands })?;
            if let Some(before) = before {
                operands.output.set(last, before);
            }
            Ok(())
        }
    }
    let report = failures(&mut Wrong, Contract::GATHER);
    assert!(says(&report, "got NaN"), "{report}");
}

#[test]
fn a_bias_left_out_is_found() {
    struct Wrong;
    impl Operators for Wrong {
        fn dense(&mut self, spec: &dense::Spec, mut operands: dense::Operands<'_>) -> Result<(), Refusal> {
            operands.check(spec)?;
            operands.bias = None;
            let config = dense::Config { bias: None, ..spec.config().clone() };
            Ok(dense::reference(&dense::Spec::new(config).unwrap(), operands)?)
        }
    }
    failures(&mut Wrong, Contract::DENSE);
}

#[test]
fn gate_and_up_in_the_other_order_are_found() {
    struct Wrong;
    impl Operators for Wrong {
        fn dense_swiglu(
            &mut self,
            spec: &dense_swiglu::Spec,
            operands: dense_swiglu::Operands<'_>,
        ) -> Result<(), Refusal> {
            operands.check(spec)?;
            let Weight::Dense(weight) = operands.weight else {
                return Ok(dense_swiglu::reference(spec, operands)?);
            };
            let (n, k) = (spec.config().n, spec.config().k);
            let rows = (n..2 * n).chain(0..n);
            let swapped: Vec<f32> = rows.flat_map(|row| (0..k).map(move |i| weight.at([row, i]))).collect();
            let config =
                dense_swiglu::Config { weight: WeightFormat::Dense(DType::F32), ..spec.config().clone() };
            let weight = Weight::Dense(FloatView::contiguous(&swapped, [2 * n, k]).unwrap());
            let operands = dense_swiglu::Operands { weight, ..operands };
            Ok(dense_swiglu::reference(&dense_swiglu::Spec::new(config).unwrap(), operands)?)
        }
    }
    failures(&mut Wrong, Contract::DENSE);
}

#[test]
fn a_key_that_changes_its_neighbour_is_found() {
    struct Wrong;
    impl Operators for Wrong {
        fn paged_append(
            &mut self,
            spec: &paged_append::Spec,
            mut operands: paged_append::Operands<'_>,
        ) -> Result<(), Refusal> {
            operands.check(spec)?;
            operands.check_indices(spec).map_err(|error| Refusal::Failed(error.to_string()))?;
            operands.k_pages.set(operands.k_pages.shape().map(|extent| extent - 1), 5.0);
            Ok(paged_append::reference(spec, operands)?)
        }
    }
    let report = failures(&mut Wrong, Contract::PAGED_APPEND);
    assert!(says(&report, "of k_pages"), "{report}");
}

#[test]
fn a_decode_that_misses_the_newest_key_is_found_in_every_element_type() {
    struct Wrong;
    impl Operators for Wrong {
        fn paged_decode(
            &mut self,
            spec: &paged_decode::Spec,
            operands: paged_decode::Operands<'_>,
        ) -> Result<(), Refusal> {
            operands.check(spec)?;
            let lens: Vec<i32> =
                (0..operands.kv_len.shape()[0]).map(|i| (operands.kv_len.at([i]) - 1).max(0)).collect();
            let kv_len = View::contiguous(&lens, [lens.len()]).unwrap();
            Ok(paged_decode::reference(spec, paged_decode::Operands { kv_len, ..operands })?)
        }
    }
    let report = failures(&mut Wrong, Contract::PAGED_DECODE);
    for dtype in ["f32", "f16", "bf16"] {
        let named = format!("dtype={dtype}, window=none, soft_cap=none, lse=present, kv_dtype={dtype}");
        assert!(report.failures().iter().any(|failure| failure.case.contains(&named)), "{dtype}: {report}");
    }
}

#[test]
fn a_window_that_is_one_key_wider_is_found() {
    struct Wrong;
    impl Operators for Wrong {
        fn paged_prefill(
            &mut self,
            spec: &paged_prefill::Spec,
            operands: paged_prefill::Operands<'_>,
        ) -> Result<(), Refusal> {
            let mut config = spec.config().clone();
            config.attention.window = config.attention.window.map(|window| window + 1);
            Ok(paged_prefill::reference(&paged_prefill::Spec::new(config).unwrap(), operands)?)
        }
    }
    let report = failures(&mut Wrong, Contract::PAGED_PREFILL);
    assert!(report.failures().iter().all(|failure| failure.case.contains("window=Some")), "{report}");
}

#[test]
fn taking_a_bad_index_is_found() {
    struct Wrong;
    impl Operators for Wrong {
        fn gather(&mut self, spec: &gather::Spec, operands: gather::Operands<'_>) -> Result<(), Refusal> {
            operands.check(spec)?;
            let last = operands.table.shape()[0] as u32 - 1;
            let ids: Vec<u32> =
                (0..operands.ids.shape()[0]).map(|i| operands.ids.at([i]).min(last)).collect();
            let ids = View::contiguous(&ids, [ids.len()]).unwrap();
            Ok(gather::reference(spec, gather::Operands { ids, ..operands })?)
        }
    }
    let report = failures(&mut Wrong, Contract::GATHER);
    assert!(says(&report, "it took what the contract refuses"), "{report}");
}

#[test]
fn a_panic_is_a_failed_case() {
    struct Wrong;
    impl Operators for Wrong {
        fn swiglu(&mut self, _: &swiglu::Spec, operands: swiglu::Operands<'_>) -> Result<(), Refusal> {
            operands.gate.at([usize::MAX, 0]);
            Ok(())
        }
    }
    // The panics of the cases are expected; keep them out of the test's output.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let report = failures(&mut Wrong, Contract::SWIGLU);
    std::panic::set_hook(hook);
    assert!(says(&report, "it panicked"), "{report}");
}

#[test]
fn a_wrong_tie_break_is_found() {
    struct Wrong;
    impl Operators for Wrong {
        fn sample(&mut self, spec: &sampling::Spec, rows: &[LogitsRow<'_>]) -> Result<Vec<Sampled>, Refusal> {
            let mut sampled = sampling::reference(spec, rows)?;
            for (sampled, row) in sampled.iter_mut().zip(rows) {
                let tied = row.logits.iter().all(|logit| *logit == row.logits[0]);
                if tied {
                    sampled.token = TokenId(row.logits.len() as u32 - 1);
                }
            }
            Ok(sampled)
        }
    }
    failures(&mut Wrong, Contract::SAMPLE);
}

#[test]
fn a_row_that_depends_on_its_place_in_the_batch_is_found() {
    struct Wrong;
    impl Operators for Wrong {
        fn sample(&mut self, spec: &sampling::Spec, rows: &[LogitsRow<'_>]) -> Result<Vec<Sampled>, Refusal> {
            let moved: Vec<_> = rows
                .iter()
                .enumerate()
                .map(|(i, row)| LogitsRow { position: row.position + i as u64, ..*row })
                .collect();
            Ok(sampling::reference(spec, &moved)?)
        }
    }
    let report = failures(&mut Wrong, Contract::SAMPLE);
    assert!(report.failures().iter().all(|failure| failure.case.contains("at once")), "{report}");
}
