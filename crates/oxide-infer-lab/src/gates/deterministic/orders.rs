//! Whether artifacts of one order of sums give the same bits: each of them over several numbers of rows, from several rows
//! on, against the first of its order over all rows.

use crate::record::Finding;
use anyhow::{Context as _, Result, ensure};
use half::bf16;
use oxide_infer::{DType, Element};
use oxide_infer_cuda::artifact::manifest::{self, Access, Manifest, Property, Role};
use oxide_infer_cuda::artifact::{Artifact, Dimensions, Reduction, Registry};
use oxide_infer_cuda::runtime::{
    CommandScope, Context, DeviceMemory, EarlyLaunch, Loader, Operands, OperatorPlan, PinnedMemory, Region,
    StatusWord, Stream,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// `[n, k]`: attention output and down of the 1.5B shape, and sizes that no slice and no range divides. A row of sums of eight
/// squares begins at a multiple of 16 bytes.
pub(super) const SHAPES: [[usize; 2]; 4] = [[1536, 1536], [1536, 8960], [288, 96], [544, 1568]];
/// First row and number of rows.
pub(super) const ROWS: [[usize; 2]; 12] = [
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
const EPSILON: f32 = 1e-6;
/// Rows in all.
const ALL: usize = 300;

/// Heads of a query and of keys and values, which are products as well.
const HEADS: [(&str, u64); 2] = [("num_q_heads", 2), ("num_kv_heads", 1)];
/// Tokens of a page, of which every row has one.
const PAGE_SIZE: u64 = 64;

pub(super) fn run(context: &Context, registry: &Arc<Registry>, finding: &mut Finding) -> Result<()> {
    let mut products: BTreeMap<String, Vec<&Arc<Artifact>>> = BTreeMap::new();
    for artifact in registry.artifacts().filter(|artifact| of_models(artifact.manifest())) {
        let manifest = artifact.manifest();
        let key = format!("{:?} {:?}", manifest.properties, head_dim(manifest));
        products.entry(key).or_default().push(artifact);
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

/// Whether it is a product of models, which multiply bf16.
fn of_models(manifest: &Manifest) -> bool {
    let is = |property: &str, values: &[&str]| {
        let found = manifest.properties.get(property);
        values.iter().any(|value| found == Some(&Property::from(*value)))
    };
    match manifest.contract.as_str() {
        "gemm.dense" => is("input", &["bf16", "weighted_bf16"]),
        _ => is("qkv", &["projected"]),
    }
}

fn head_dim(manifest: &Manifest) -> Option<u64> {
    Some(manifest.dimensions.get("head_dim")?.min)
}

struct Products {
    stream: Stream,
    loader: Loader,
}

impl Products {
    /// All artifacts of the same properties over one weight, as far as each admits it.
    fn compare(
        &mut self,
        artifacts: &[&Arc<Artifact>],
        size: [usize; 2],
        finding: &mut Finding,
    ) -> Result<()> {
        let admitted = |artifact: &Artifact, rows| {
            let dimensions = dimensions(artifact.manifest(), rows, size);
            artifact.manifest().out_of_domain(&dimensions).is_none().then_some(dimensions)
        };
        let reduction =
            |artifact: &Artifact| artifact.manifest().reduction(&dimensions(artifact.manifest(), 1, size));
        let mut first: BTreeMap<Reduction, (String, Outputs)> = BTreeMap::new();
        let mut memory = None;
        for artifact in artifacts {
            let Some(reduction) = reduction(artifact) else { continue };
            let Some(all) = admitted(artifact, ALL).filter(|_| !first.contains_key(&reduction)) else {
                continue;
            };
            let memory = match &memory {
                Some(memory) => memory,
                None => memory.insert(Memory::new(artifact, &self.stream, size)?),
            };
            let plan = self.loader.plan_artifact((*artifact).clone(), all)?;
            let all = memory.outputs(&self.stream, &plan, [0, ALL])?;
            first.insert(reduction, (artifact.manifest().name.clone(), all));
        }
        let Some(memory) = memory else { return Ok(()) };
        for artifact in artifacts {
            let Some((reference, all)) = reduction(artifact).and_then(|reduction| first.get(&reduction))
            else {
                continue;
            };
            for [from, rows] in ROWS {
                let Some(dimensions) = admitted(artifact, rows) else { continue };
                let plan = self.loader.plan_artifact((*artifact).clone(), dimensions)?;
                let found = memory.outputs(&self.stream, &plan, [from, rows])?;
                let verdict = found.iter().try_for_each(|(name, found)| {
                    let all = &all[name];
                    let row = all.len() / ALL;
                    same_rows(found, &all[from * row..(from + rows) * row], row).context(name.clone())
                });
                let (name, [n, k]) = (&artifact.manifest().name, size);
                let what = || format!("{name}, n={n} k={k}, {rows} rows from {from} on, as by {reference}");
                finding.check("products of one order", verdict.with_context(what));
            }
        }
        Ok(())
    }
}

pub(super) fn dimensions(manifest: &Manifest, rows: usize, [n, k]: [usize; 2]) -> Dimensions {
    let named = |all: &[(&str, u64)]| all.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    let (rows, n, k, all) = (rows as u64, n as u64, k as u64, ALL as u64);
    match head_dim(manifest) {
        None => named(&[("m", rows), ("n", n), ("k", k)]),
        Some(head_dim) => named(&[
            ("tokens", rows),
            ("batch", rows),
            ("hidden_size", k),
            HEADS[0],
            HEADS[1],
            ("head_dim", head_dim),
            ("rotary_dim", head_dim),
            ("page_size", PAGE_SIZE),
            ("num_pages", all),
            ("max_pages", 1),
            ("max_positions", PAGE_SIZE),
        ]),
    }
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

/// What a product wrote for some rows, by operand.
type Outputs = BTreeMap<String, Vec<u8>>;

/// The operands of a product over all rows.
struct Memory(BTreeMap<String, Place>);

struct Place {
    memory: DeviceMemory,
    dtype: DType,
    access: Access,
    /// Bytes of a row, where rows have their own; a page is its row's.
    row: Option<usize>,
    /// Whether an operand is all rows', however few are computed.
    whole: bool,
}

impl Memory {
    fn new(artifact: &Artifact, stream: &Stream, size: [usize; 2]) -> Result<Self> {
        let manifest = artifact.manifest();
        let mut places = BTreeMap::new();
        for operand in manifest.operands.iter().filter(|operand| operand.role == Role::Operand) {
            let elements = |rows| -> Result<usize> {
                let extents =
                    operand.shape.iter().map(|extent| extent.eval(&dimensions(manifest, rows, size)));
                Ok(extents.product::<Result<u64, _>>()? as usize)
            };
            let (one, all) = (elements(1)?, elements(ALL)?);
            let dtype = match operand.element {
                manifest::Element::F32 => DType::F32,
                manifest::Element::I32 => DType::I32,
                _ => DType::BF16,
            };
            let whole = one == all;
            let row = match operand.access {
                _ if !whole => Some(one * dtype.size()),
                Access::Read => None,
                _ => Some(all / ALL * dtype.size()),
            };
            let memory = content(stream, &operand.name, dtype, all, places.len())?;
            places.insert(operand.name.clone(), Place { memory, dtype, access: operand.access, row, whole });
        }
        Ok(Self(places))
    }

    /// What a plan writes that computes rows from one of the input's on.
    fn outputs(&self, stream: &Stream, plan: &OperatorPlan, [from, rows]: [usize; 2]) -> Result<Outputs> {
        let context = stream.context();
        let workspaces = plan.workspaces()?;
        let spaces = workspaces.iter().map(|one| DeviceMemory::allocate(context, one.bytes as usize));
        let spaces = spaces.collect::<Result<Vec<_>, _>>()?;
        let status = StatusWord::new(context)?;
        let attributes = plan.artifact().manifest().attributes.keys();
        let operands = attributes.fold(Operands::new(), |operands, name| operands.attribute(name, EPSILON));
        let mut operands = operands.status(&status);
        for (name, place) in &self.0 {
            let (start, bytes) = match place.row.filter(|_| !place.whole) {
                Some(row) => (from * row, rows * row),
                None => (0, place.memory.bytes()),
            };
            operands = operands.span(name, place.memory.span(start, bytes, place.dtype)?);
        }
        for (workspace, memory) in workspaces.iter().zip(&spaces) {
            operands = operands.span(&workspace.name, memory.span(0, memory.bytes(), workspace.dtype)?);
        }
        let bound = plan.bind(&operands)?;
        let mut scope = CommandScope::new(stream)?;
        let written = self.0.iter().filter(|(_, place)| place.access != Access::Read);
        let mut copies = Vec::new();
        for (name, place) in written {
            let row = place.row.unwrap_or_default();
            let target: Region<u8> = place.memory.region(from * row, rows * row)?;
            scope.fill(&target, 0xFF)?;
            copies.push((name, target, PinnedMemory::<u8>::allocate(context, rows * row)?));
        }
        bound.enqueue(&mut scope)?;
        for (_, target, host) in &copies {
            scope.copy_out(target, host)?;
        }
        scope.finish()?.wait()?;
        let read = |(name, _, host): (&String, _, PinnedMemory<u8>)| {
            let mut bytes = vec![0; host.len()];
            host.read_into(0, &mut bytes)?;
            Ok((name.clone(), bytes))
        };
        copies.into_iter().map(read).collect()
    }
}

/// An operand of all rows: numbers, but every row's place in a page of its own, and sums of squares that are none below zero.
fn content(stream: &Stream, name: &str, dtype: DType, len: usize, seed: usize) -> Result<DeviceMemory> {
    match (name, dtype) {
        ("positions", _) => written(stream, len, |row| row as i32 % PAGE_SIZE as i32),
        ("block_table", _) => written(stream, len, |row| row as i32),
        ("squares", _) => filled(stream, len, seed, f32::abs),
        ("weight", _) => filled(stream, len, seed, |value| bf16::from_f32(value / 16.0)),
        (_, DType::F32) => filled(stream, len, seed, |value| value),
        _ => filled(stream, len, seed, bf16::from_f32),
    }
}

/// Numbers in [−0.5, 0.5) that differ from place to place, by a seed.
fn filled<T: Element>(
    stream: &Stream,
    len: usize,
    seed: usize,
    of: impl Fn(f32) -> T,
) -> Result<DeviceMemory> {
    let value = |i: usize| ((i + seed).wrapping_mul(2_654_435_761) % 65_521) as f32 / 65_521.0 - 0.5;
    written(stream, len, |i| of(value(i)))
}

/// Values by their places.
fn written<T: Element>(stream: &Stream, len: usize, of: impl Fn(usize) -> T) -> Result<DeviceMemory> {
    let memory = DeviceMemory::allocate(stream.context(), len * size_of::<T>())?;
    let host = PinnedMemory::<T>::allocate(stream.context(), len)?;
    host.write_from(0, (0..len).map(of))?;
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
