//! Whether artifacts of one order of sums give the same bits: each of them over several numbers of rows, from several rows
//! on, against the first of its order over all rows.

use crate::record::Finding;
use anyhow::{Context as _, Result, ensure};
use half::bf16;
use oxide_infer::{DType, Element};
use oxide_infer_cuda::artifact::manifest::{Access, Property, Role};
use oxide_infer_cuda::artifact::{Artifact, Dimensions, Reduction, Registry};
use oxide_infer_cuda::runtime::{
    CommandScope, Context, DeviceMemory, EarlyLaunch, Loader, Operands, OperatorPlan, PinnedMemory, Region,
    Stream,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// `[n, k]`: attention output and down of the 1.5B shape, and sizes that no slice and no range divides.
const SHAPES: [[usize; 2]; 4] = [[1536, 1536], [1536, 8960], [264, 72], [520, 1544]];
/// First row and number of rows.
const ROWS: [[usize; 2]; 12] = [
    [0, 1],
    [299, 1],
    [7, 2],
    [0, 8],
    [13, 9],
    [0, 16],
    [100, 31],
    [200, 64],
    [3, 65],
    [44, 128],
    [40, 256],
    [0, 300],
];
/// Rows in all.
const ALL: usize = 300;

pub(super) fn run(context: &Context, registry: &Arc<Registry>, finding: &mut Finding) -> Result<()> {
    let mut products: BTreeMap<String, Vec<&Arc<Artifact>>> = BTreeMap::new();
    // Those of models, which multiply bf16.
    let of_models = |artifact: &&Arc<Artifact>| {
        let manifest = artifact.manifest();
        manifest.contract == "gemm.dense" && manifest.properties.get("input") == Some(&Property::from("bf16"))
    };
    for artifact in registry.artifacts().filter(of_models) {
        products.entry(format!("{:?}", artifact.manifest().properties)).or_default().push(artifact);
    }
    // As the engine launches them.
    let loader = Loader::new(context, registry.clone()).early_launch(EarlyLaunch::WhereKernelsWait);
    let mut gate = Products { stream: context.stream()?, loader };
    for artifacts in products.values() {
        for size in SHAPES {
            gate.compare(artifacts, size, finding)?;
        }
    }
    Ok(())
}

struct Products {
    stream: Stream,
    loader: Loader,
}

impl Products {
    /// All artifacts of the same properties over one weight.
    fn compare(
        &mut self,
        artifacts: &[&Arc<Artifact>],
        [n, k]: [usize; 2],
        finding: &mut Finding,
    ) -> Result<()> {
        let mut first: BTreeMap<Reduction, (String, Vec<u8>)> = BTreeMap::new();
        let Some(memory) = artifacts.first().map(|artifact| Memory::new(artifact, &self.stream, n, k)) else {
            return Ok(());
        };
        let memory = memory?;
        for artifact in artifacts {
            let name = &artifact.manifest().name;
            let Some(reduction) = artifact.manifest().reduction(&dimensions(1, n, k)) else { continue };
            let plan = |gate: &mut Self, rows| {
                gate.loader.plan_artifact((*artifact).clone(), dimensions(rows, n, k))
            };
            if !first.contains_key(&reduction) {
                let plan = plan(self, ALL)?;
                let all = memory.output(&self.stream, &plan, [0, ALL])?;
                first.insert(reduction.clone(), (name.clone(), all));
            }
            let (reference, all) = &first[&reduction];
            let row = all.len() / ALL;
            for [from, rows] in ROWS {
                let plan = plan(self, rows)?;
                let found = memory.output(&self.stream, &plan, [from, rows])?;
                let what = || format!("{name}, n={n} k={k}, {rows} rows from {from} on");
                let verdict = same_rows(&found, &all[from * row..(from + rows) * row], row);
                let verdict = verdict.with_context(|| format!("{}, as by {reference}", what()));
                finding.check("products of one order", verdict);
            }
        }
        Ok(())
    }
}

fn dimensions(m: usize, n: usize, k: usize) -> Dimensions {
    [("m", m), ("n", n), ("k", k)].map(|(name, value)| (name.to_owned(), value as u64)).into()
}

fn same_rows(found: &[u8], expected: &[u8], row: usize) -> Result<()> {
    let different =
        found.chunks(row).zip(expected.chunks(row)).position(|(found, expected)| found != expected);
    ensure!(
        found.len() == expected.len(),
        "{} bytes came where {} were expected",
        found.len(),
        expected.len()
    );
    ensure!(different.is_none(), "row {} has other bits", different.unwrap_or_default());
    Ok(())
}

/// The operands of a product over all rows.
struct Memory {
    input: DeviceMemory,
    weight: DeviceMemory,
    bias: DeviceMemory,
    residual: DeviceMemory,
    output: DeviceMemory,
    output_dtype: DType,
    n: usize,
    k: usize,
}

impl Memory {
    fn new(artifact: &Artifact, stream: &Stream, n: usize, k: usize) -> Result<Self> {
        let context = stream.context();
        let is = |property: &str, value: &str| {
            artifact.manifest().properties.get(property) == Some(&Property::Text(value.to_owned()))
        };
        let output_dtype = if is("output", "f32") { DType::F32 } else { DType::BF16 };
        let rows = if is("activation", "swiglu") { 2 * n } else { n };
        let output = DeviceMemory::allocate(context, ALL * n * output_dtype.size())?;
        Ok(Self {
            input: filled(stream, ALL * k, 1, bf16::from_f32)?,
            weight: filled(stream, rows * k, 2, |value| bf16::from_f32(value / 16.0))?,
            bias: filled(stream, n, 3, bf16::from_f32)?,
            residual: filled(stream, ALL * n, 4, |value| value)?,
            output,
            output_dtype,
            n,
            k,
        })
    }

    /// The rows that a plan computes from one row of the input on.
    fn output(&self, stream: &Stream, plan: &OperatorPlan, [from, rows]: [usize; 2]) -> Result<Vec<u8>> {
        let context = stream.context();
        let (bf, n, k) = (DType::BF16, self.n, self.k);
        let width = n * self.output_dtype.size();
        let workspaces = plan.workspaces()?;
        let spaces = workspaces.iter().map(|one| DeviceMemory::allocate(context, one.bytes as usize));
        let spaces = spaces.collect::<Result<Vec<_>, _>>()?;
        let mut operands = Operands::new()
            .span("input", self.input.span(from * k * bf.size(), rows * k * bf.size(), bf)?)
            .span("weight", self.weight.span(0, self.weight.bytes(), bf)?)
            .span("output", self.output.span(0, rows * width, self.output_dtype)?);
        for operand in &plan.artifact().manifest().operands {
            if operand.role == Role::Operand && operand.access == Access::Read {
                operands = match operand.name.as_str() {
                    "bias" => operands.span("bias", self.bias.span(0, self.bias.bytes(), bf)?),
                    "residual" => {
                        operands.span("residual", self.residual.span(from * n * 4, rows * n * 4, DType::F32)?)
                    }
                    _ => operands,
                };
            }
        }
        for (workspace, memory) in workspaces.iter().zip(&spaces) {
            operands = operands.span(&workspace.name, memory.span(0, memory.bytes(), workspace.dtype)?);
        }
        let bound = plan.bind(&operands)?;
        let target: Region<u8> = self.output.region(0, rows * width)?;
        let host = PinnedMemory::<u8>::allocate(context, rows * width)?;
        let mut scope = CommandScope::new(stream)?;
        scope.fill(&target, 0xFF)?;
        bound.enqueue(&mut scope)?;
        scope.copy_out(&target, &host)?;
        scope.finish()?.wait()?;
        let mut bytes = vec![0; rows * width];
        host.read_into(0, &mut bytes)?;
        Ok(bytes)
    }
}

/// Numbers in [−0.5, 0.5) that differ from place to place, by a seed.
fn filled<T: Element>(
    stream: &Stream,
    len: usize,
    seed: usize,
    of: impl Fn(f32) -> T,
) -> Result<DeviceMemory> {
    let memory = DeviceMemory::allocate(stream.context(), len * size_of::<T>())?;
    let host = PinnedMemory::<T>::allocate(stream.context(), len)?;
    let value = |i: usize| ((i + seed).wrapping_mul(2_654_435_761) % 65_521) as f32 / 65_521.0 - 0.5;
    host.write_from(0, (0..len).map(|i| of(value(i))))?;
    let mut scope = CommandScope::new(stream)?;
    scope.copy_in(&host, &memory.region::<T>(0, len)?)?;
    scope.finish()?.wait()?;
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_with_one_other_bit_is_found() {
        let expected = [7u8; 24];
        same_rows(&expected, &expected, 8).unwrap();
        let mut found = expected;
        found[17] ^= 1;
        assert_eq!(same_rows(&found, &expected, 8).unwrap_err().to_string(), "row 2 has other bits");
        assert!(same_rows(&found[..16], &expected, 8).is_err());
    }
}
