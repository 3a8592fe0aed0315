//! Products of the sizes that models have. Their references would take hours, so that elements are drawn and computed one by one.

use super::planned;
use crate::record::Finding;
use anyhow::{Result, ensure};
use half::bf16;
use oxide_infer::gemm::dense::{Config, Spec};
use oxide_infer::{DType, Element, Float, Presence, Provider, WeightFormat};
use oxide_infer_cuda::artifact::Request;
use oxide_infer_cuda::provider::{BoundPlan, Candidacy, Cuda};
use oxide_infer_cuda::runtime::{
    CommandScope, Context, DeviceMemory, Graph, Operands, PinnedMemory, Region, Stream,
};

/// `[n, k]` of products of Qwen2.5-1.5B and Llama-3-8B: query, key and value; attention output; gate and up; down.
const LAYERS: [[usize; 2]; 8] = [
    [2048, 1536],
    [1536, 1536],
    [17_920, 1536],
    [1536, 8960],
    [6144, 4096],
    [4096, 4096],
    [28_672, 4096],
    [4096, 14_336],
];
/// The logits of both.
const LOGITS: [[usize; 2]; 2] = [[151_936, 1536], [128_256, 4096]];
const ROWS: [usize; 10] = [1, 8, 16, 32, 64, 128, 256, 512, 2048, 8192];
/// Rows whose logits are asked for at once.
const MOST_LOGITS: usize = 256;
/// Numbers that operands repeat; a prime, so that no two rows begin alike.
const BLOCK: usize = 1_048_573;
/// Where the input begins among them.
const INPUT_FROM: usize = 524_287;
/// Elements that are compared.
const DRAWN: usize = 64;

pub(super) fn run(finding: &mut Finding, cuda: Cuda) -> Result<()> {
    let context = cuda.context().clone();
    let stream = context.stream()?;
    let block = block();
    let mut shapes = Shapes { cuda, stream, block };
    let layers = LAYERS.into_iter().flat_map(|size| ROWS.map(|m| (m, size, DType::BF16)));
    let logits = LOGITS.into_iter().flat_map(|size| ROWS.map(|m| (m, size, DType::F32)));
    for (m, size, output) in layers.chain(logits.filter(|(m, ..)| *m <= MOST_LOGITS)) {
        // Query, key and value of the first model have a bias.
        let bias = (size == LAYERS[0]).then_some(output);
        let outcome = match output {
            DType::F32 => shapes.check::<f32>(finding, m, size, None),
            _ => shapes.check::<bf16>(finding, m, size, bias),
        };
        if let Err(error) = outcome {
            finding.check(&format!("m={m} n={} k={} output={output}", size[0], size[1]), Err(error));
        }
    }
    Ok(())
}

/// Numbers in [−0.5, 0.5) that differ from place to place.
fn block() -> Vec<bf16> {
    let value = |i: usize| bf16::from_f32(((i * 2_654_435_761) % 65_521) as f32 / 65_521.0 - 0.5);
    (0..BLOCK).map(value).collect()
}

struct Shapes {
    cuda: Cuda,
    stream: Stream,
    block: Vec<bf16>,
}

impl Shapes {
    /// Every proposal for one product, on the same operands.
    fn check<T: Float>(
        &mut self,
        finding: &mut Finding,
        m: usize,
        [n, k]: [usize; 2],
        bias: Option<DType>,
    ) -> Result<()> {
        let (dtype, residual) = (DType::BF16, Presence::Absent);
        let weight = WeightFormat::Dense(dtype);
        let spec = Spec::new(Config { input: dtype, weight, output: T::DTYPE, n, k, bias, residual })?;
        let request = Request::from(&spec).dimension("m", m as u64);
        let context = self.cuda.context().clone();
        let input = self.repeated(&context, m * k, INPUT_FROM)?;
        let weight = self.repeated(&context, n * k, 0)?;
        let bias = bias.map(|_| self.repeated(&context, n, 0)).transpose()?;
        let output = Region::<T>::allocate(&context, m * n)?;
        let mut operands =
            Operands::new().region("input", &input).region("weight", &weight).region("output", &output);
        if let Some(bias) = &bias {
            operands = operands.region("bias", bias);
        }
        let candidates = self.cuda.candidates(&request);
        let ready = candidates.into_iter().filter(|candidate| candidate.state == Candidacy::Ready);
        let algorithms: Vec<_> = ready.filter_map(|candidate| candidate.algorithm).collect();
        ensure!(!algorithms.is_empty(), "the library proposes no algorithm");
        for algorithm in algorithms {
            let plan = planned(self.cuda.plan(&request, Provider::CublasLt, &algorithm.name), &request)?;
            let workspaces = plan.workspaces()?;
            let memory = workspaces.iter().map(|one| DeviceMemory::allocate(&context, one.bytes as usize));
            let memory = memory.collect::<Result<Vec<_>, _>>()?;
            let mut operands = operands.clone();
            for (workspace, memory) in workspaces.iter().zip(&memory) {
                operands = operands.span(&workspace.name, memory.span(0, memory.bytes(), workspace.dtype)?);
            }
            let bound = plan.bind(&operands)?;
            // What the first copies and events take is not the product's.
            self.elements(&output, m, n, |_| Ok(()))?;
            let free = context.memory_info()?.free;
            let eager = self.elements(&output, m, n, |scope| Ok(bound.enqueue(scope)?))?;
            let taken = free.saturating_sub(context.memory_info()?.free);
            let drawn = DrawnElements { block: &self.block, k, bias: bias.is_some() };
            let name = format!("products of models by {algorithm}");
            let place =
                |error: anyhow::Error| error.context(format!("m={m} n={n} k={k} output={}", T::DTYPE));
            finding.check(&name, drawn.compare::<T>(&eager).map_err(place));
            let memory = if taken == 0 { Ok(()) } else { Err(anyhow::anyhow!("{taken} bytes are gone")) };
            finding.check(
                "products that took no device memory when they were enqueued first",
                memory.map_err(place),
            );
            finding.check(
                "products replayed from a graph, bit for bit",
                self.replays(&bound, &output, m, n, &eager).map_err(place),
            );
        }
        Ok(())
    }

    /// A region that holds the block again and again, from one of its elements on.
    fn repeated(&self, context: &Context, len: usize, from: usize) -> Result<Region<bf16>> {
        let host = PinnedMemory::<bf16>::allocate(context, BLOCK)?;
        host.write_from(0, (0..BLOCK).map(|i| self.block[(from + i) % BLOCK]))?;
        let region = Region::allocate(context, len)?;
        let mut scope = CommandScope::new(&self.stream)?;
        for start in (0..len).step_by(BLOCK) {
            let end = len.min(start + BLOCK);
            scope.copy_in(&host.slice(0..end - start)?, &region.slice(start..end)?)?;
        }
        scope.finish()?.wait()?;
        Ok(region)
    }

    /// Drawn elements of the output, computed over poison.
    fn elements<T: Float>(
        &self,
        output: &Region<T>,
        m: usize,
        n: usize,
        enqueue: impl FnOnce(&mut CommandScope) -> Result<()>,
    ) -> Result<Vec<([usize; 2], f32)>> {
        let places = places(m, n);
        let host = PinnedMemory::<T>::allocate(output.memory().context(), places.len())?;
        let mut scope = CommandScope::new(&self.stream)?;
        scope.fill(output, 0xFF)?;
        enqueue(&mut scope)?;
        for (i, [row, column]) in places.iter().enumerate() {
            let at = row * n + column;
            scope.copy_out(&output.slice(at..at + 1)?, &host.slice(i..i + 1)?)?;
        }
        scope.finish()?.wait()?;
        let value = |i: usize| host.read(i).map_or(f32::NAN, Float::to_f32);
        Ok(places.into_iter().enumerate().map(|(i, place)| (place, value(i))).collect())
    }

    fn replays<T: Float>(
        &self,
        bound: &BoundPlan,
        output: &Region<T>,
        m: usize,
        n: usize,
        eager: &[([usize; 2], f32)],
    ) -> Result<()> {
        let graph = Graph::capture(&self.stream, |scope| bound.enqueue(scope))?;
        let replayed = self.elements(output, m, n, |scope| Ok(graph.replay(scope)?))?;
        let bits =
            |elements: &[([usize; 2], f32)]| elements.iter().map(|(_, v)| v.to_bits()).collect::<Vec<_>>();
        ensure!(bits(&replayed) == bits(eager), "the replay differs from the eager product");
        Ok(())
    }
}

/// The corners, and places between them.
fn places(m: usize, n: usize) -> Vec<[usize; 2]> {
    let corners = [[0, 0], [0, n - 1], [m - 1, 0], [m - 1, n - 1]];
    let between = (1..=DRAWN - corners.len()).map(|i| [i * 2_654_435_761 % m, i * 2_246_822_519 % n]);
    corners.into_iter().chain(between).collect()
}

/// What elements of a product must be.
struct DrawnElements<'a> {
    block: &'a [bf16],
    k: usize,
    bias: bool,
}

impl DrawnElements<'_> {
    /// Of the repeated block: `Σ_k input[row, k] · weight[column, k] + bias[column]`.
    fn expected(&self, [row, column]: [usize; 2]) -> f64 {
        let at = |from: usize, i: usize| f64::from(self.block[(from + i % BLOCK) % BLOCK].to_f32());
        let product = |i: usize| at(INPUT_FROM, row * self.k + i) * at(0, column * self.k + i);
        let sum: f64 = (0..self.k).map(product).sum();
        sum + if self.bias { at(0, column) } else { 0.0 }
    }

    /// How far an f32 sum may be off: tensor cores cut off what is below the last bit of the running sum at each step of 16
    /// products, and that sum is at most all products without their signs.
    fn rounding(&self, [row, column]: [usize; 2]) -> f64 {
        let at = |from: usize, i: usize| f64::from(self.block[(from + i % BLOCK) % BLOCK].to_f32());
        let product = |i: usize| (at(INPUT_FROM, row * self.k + i) * at(0, column * self.k + i)).abs();
        let most: f64 = (0..self.k).map(product).sum();
        most * self.k.div_ceil(16) as f64 * f64::from(f32::EPSILON)
    }

    /// With the tolerance of the conformance suite, and what rounding explains.
    fn compare<T: Element>(&self, elements: &[([usize; 2], f32)]) -> Result<()> {
        let relative = if T::DTYPE == DType::F32 { 1e-5 } else { 1.0 / 128.0 };
        for (place, got) in elements {
            let want = self.expected(*place);
            let absolute = self.rounding(*place);
            let near = (f64::from(*got) - want).abs() <= absolute + relative * want.abs();
            ensure!(near, "element {place:?} should be {want}, got {got}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_elements_are_those_of_the_repeated_block() {
        let block = block();
        let drawn = DrawnElements { block: &block, k: 3, bias: true };
        let value = |i: usize| f64::from(block[i].to_f32());
        // Row 2 of the input begins at element 6, column 1 of the weight at element 3.
        let sum: f64 = (0..3).map(|i| value(INPUT_FROM + 6 + i) * value(3 + i)).sum();
        assert!((drawn.expected([2, 1]) - sum - value(1)).abs() < 1e-12);
        // Element 1,048,575 is the third of the second repetition.
        let late = DrawnElements { block: &block, k: 1, bias: false };
        let place = [0, BLOCK + 2];
        assert!((late.expected(place) - value(INPUT_FROM) * value(2)).abs() < 1e-12);
    }

    #[test]
    fn a_wrong_element_is_found_and_named() {
        let block = block();
        let drawn = DrawnElements { block: &block, k: 1536, bias: false };
        let right = |place| (place, drawn.expected(place) as f32);
        let mut elements: Vec<_> = places(8, 2048).into_iter().map(right).collect();
        assert_eq!(elements.len(), DRAWN);
        drawn.compare::<f32>(&elements).unwrap();
        elements[5].1 += 0.01;
        let error = drawn.compare::<f32>(&elements).unwrap_err().to_string();
        assert!(error.starts_with(&format!("element {:?} should be", elements[5].0)), "{error}");
        elements[5].1 = f32::NAN;
        assert!(drawn.compare::<bf16>(&elements).is_err(), "poison is never near");
    }
}
