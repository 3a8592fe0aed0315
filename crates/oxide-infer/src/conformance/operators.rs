use super::Refusal;
use crate::Contract;
use crate::activation::swiglu;
use crate::attention::{paged_decode, paged_prefill, ragged_prefill, single_decode};
use crate::embedding::gather;
use crate::gemm::{dense, dense_swiglu};
use crate::kv_cache::{paged_append, rope_append};
use crate::normalization::rms_norm;
use crate::position::rope;
use crate::sampling::{self, LogitsRow, Sampled};

/// A provider, as the suite sees it. Each method runs one contract to its end on host operands (a device provider copies
/// them, guards included, there and back). Methods left out are contracts that the provider does not have.
pub trait Operators {
    /// [`crate::normalization::rms_norm`]
    fn rms_norm(&mut self, _: &rms_norm::Spec, _: rms_norm::Operands<'_>) -> Result<(), Refusal> {
        absent(Contract::RMS_NORM)
    }
    /// [`crate::position::rope`]
    fn rope(&mut self, _: &rope::Spec, _: rope::Operands<'_>) -> Result<(), Refusal> {
        absent(Contract::ROPE)
    }
    /// [`crate::kv_cache::paged_append`]
    fn paged_append(&mut self, _: &paged_append::Spec, _: paged_append::Operands<'_>) -> Result<(), Refusal> {
        absent(Contract::PAGED_APPEND)
    }
    /// [`crate::kv_cache::rope_append`]
    fn rope_append(&mut self, _: &rope_append::Spec, _: rope_append::Operands<'_>) -> Result<(), Refusal> {
        absent(Contract::ROPE_APPEND)
    }
    /// [`crate::attention::single_decode`]
    fn single_decode(
        &mut self,
        _: &single_decode::Spec,
        _: single_decode::Operands<'_>,
    ) -> Result<(), Refusal> {
        absent(Contract::SINGLE_DECODE)
    }
    /// [`crate::attention::paged_decode`]
    fn paged_decode(&mut self, _: &paged_decode::Spec, _: paged_decode::Operands<'_>) -> Result<(), Refusal> {
        absent(Contract::PAGED_DECODE)
    }
    /// [`crate::attention::ragged_prefill`]
    fn ragged_prefill(
        &mut self,
        _: &ragged_prefill::Spec,
        _: ragged_prefill::Operands<'_>,
    ) -> Result<(), Refusal> {
        absent(Contract::RAGGED_PREFILL)
    }
    /// [`crate::attention::paged_prefill`]
    fn paged_prefill(
        &mut self,
        _: &paged_prefill::Spec,
        _: paged_prefill::Operands<'_>,
    ) -> Result<(), Refusal> {
        absent(Contract::PAGED_PREFILL)
    }
    /// [`crate::gemm::dense`]
    fn dense(&mut self, _: &dense::Spec, _: dense::Operands<'_>) -> Result<(), Refusal> {
        absent(Contract::DENSE)
    }
    /// [`crate::gemm::dense_swiglu`]
    fn dense_swiglu(&mut self, _: &dense_swiglu::Spec, _: dense_swiglu::Operands<'_>) -> Result<(), Refusal> {
        absent(Contract::DENSE)
    }
    /// [`crate::activation::swiglu`]
    fn swiglu(&mut self, _: &swiglu::Spec, _: swiglu::Operands<'_>) -> Result<(), Refusal> {
        absent(Contract::SWIGLU)
    }
    /// [`crate::embedding::gather`]
    fn gather(&mut self, _: &gather::Spec, _: gather::Operands<'_>) -> Result<(), Refusal> {
        absent(Contract::GATHER)
    }
    /// [`crate::sampling`]
    fn sample(&mut self, _: &sampling::Spec, _: &[LogitsRow<'_>]) -> Result<Vec<Sampled>, Refusal> {
        absent(Contract::SAMPLE)
    }
}

fn absent<T>(contract: Contract) -> Result<T, Refusal> {
    Err(Refusal::NotAdmitted(format!("the provider has no {contract}")))
}

/// The references as a provider: passes every case, by definition of the expected values; what it proves is the suite.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

impl Operators for Reference {
    fn rms_norm(&mut self, spec: &rms_norm::Spec, operands: rms_norm::Operands<'_>) -> Result<(), Refusal> {
        Ok(rms_norm::reference(spec, operands)?)
    }
    fn rope(&mut self, spec: &rope::Spec, operands: rope::Operands<'_>) -> Result<(), Refusal> {
        Ok(rope::reference(spec, operands)?)
    }
    fn paged_append(
        &mut self,
        spec: &paged_append::Spec,
        operands: paged_append::Operands<'_>,
    ) -> Result<(), Refusal> {
        Ok(paged_append::reference(spec, operands)?)
    }
    fn rope_append(
        &mut self,
        spec: &rope_append::Spec,
        operands: rope_append::Operands<'_>,
    ) -> Result<(), Refusal> {
        Ok(rope_append::reference(spec, operands)?)
    }
    fn single_decode(
        &mut self,
        spec: &single_decode::Spec,
        operands: single_decode::Operands<'_>,
    ) -> Result<(), Refusal> {
        Ok(single_decode::reference(spec, operands)?)
    }
    fn paged_decode(
        &mut self,
        spec: &paged_decode::Spec,
        operands: paged_decode::Operands<'_>,
    ) -> Result<(), Refusal> {
        Ok(paged_decode::reference(spec, operands)?)
    }
    fn ragged_prefill(
        &mut self,
        spec: &ragged_prefill::Spec,
        operands: ragged_prefill::Operands<'_>,
    ) -> Result<(), Refusal> {
        Ok(ragged_prefill::reference(spec, operands)?)
    }
    fn paged_prefill(
        &mut self,
        spec: &paged_prefill::Spec,
        operands: paged_prefill::Operands<'_>,
    ) -> Result<(), Refusal> {
        Ok(paged_prefill::reference(spec, operands)?)
    }
    fn dense(&mut self, spec: &dense::Spec, operands: dense::Operands<'_>) -> Result<(), Refusal> {
        Ok(dense::reference(spec, operands)?)
    }
    fn dense_swiglu(
        &mut self,
        spec: &dense_swiglu::Spec,
        operands: dense_swiglu::Operands<'_>,
    ) -> Result<(), Refusal> {
        Ok(dense_swiglu::reference(spec, operands)?)
    }
    fn swiglu(&mut self, spec: &swiglu::Spec, operands: swiglu::Operands<'_>) -> Result<(), Refusal> {
        Ok(swiglu::reference(spec, operands)?)
    }
    fn gather(&mut self, spec: &gather::Spec, operands: gather::Operands<'_>) -> Result<(), Refusal> {
        Ok(gather::reference(spec, operands)?)
    }
    fn sample(&mut self, spec: &sampling::Spec, rows: &[LogitsRow<'_>]) -> Result<Vec<Sampled>, Refusal> {
        Ok(sampling::reference(spec, rows)?)
    }
}
