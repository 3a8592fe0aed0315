//! Norms of a step of a few rows, spread over the products around them.

use super::{CudaOperator, Fused, Requests};
use crate::cuda::classes::StepClass;
use crate::cuda::lower::{Activation, Residual};
use oxide_infer_cuda::artifact::Request;

/// A product that ends a block, the norm after it, and the operators that read the norm: as they were lowered, and as two.
struct Link {
    weighted: Fused,
    scaled: Fused,
    /// Operators after the norm that `scaled` stands for.
    readers: usize,
}

impl Requests<'_> {
    /// The operators of a class, with every norm between two products spread over them where that saves launches and nothing
    /// else changes. The first norm and the last are what they were.
    pub(super) fn chain(&self, class: StepClass) -> Vec<Vec<CudaOperator>> {
        let layers = &self.model.layers;
        let numbered = layers.iter().enumerate();
        let all: Vec<(usize, &CudaOperator)> =
            numbered.flat_map(|(layer, operators)| operators.iter().map(move |one| (layer, one))).collect();
        let mut chained = vec![Vec::new(); layers.len()];
        let mut rest = &all[..];
        while let Some(&(layer, operator)) = rest.first() {
            let used = match link(rest).filter(|link| self.admits(link, rest, class)) {
                Some(Link { weighted, scaled, readers }) => {
                    chained[layer].push(CudaOperator::Fused(weighted));
                    chained[rest[2].0].push(CudaOperator::Fused(scaled));
                    2 + readers
                }
                None => {
                    chained[layer].push(operator.clone());
                    1
                }
            };
            rest = &rest[used..];
        }
        chained
    }

    /// Whether both products are computed by the schedules that compute them with the norm between them: then they take no
    /// longer, and the launches between them are saved.
    fn admits(&self, link: &Link, rest: &[(usize, &CudaOperator)], class: StepClass) -> bool {
        let chosen = |request: Option<Request>| {
            let artifact = self.registry.select(&request?).ok()?;
            Some(artifact.manifest().algorithm.clone())
        };
        [(&link.weighted, rest[0].1), (&link.scaled, rest[2].1)].into_iter().all(|(fused, plain)| {
            let fused = chosen(Some(self.fused(fused, class.tokens())));
            fused.is_some() && fused == chosen(self.layer(plain, class))
        })
    }
}

/// The link that the first operators make.
fn link(operators: &[(usize, &CudaOperator)]) -> Option<Link> {
    use CudaOperator as O;
    let (&[(_, product), (_, norm)], readers) = operators.split_first_chunk()?;
    let O::Dense { input, weights, bias: None, residual: Residual::Present, output } = product else {
        return None;
    };
    let (&[weight], Activation::Hidden, O::RmsNorm(norm)) = (&weights[..], output, norm) else { return None };
    let weighted = Fused::Weighted { input: *input, weight, norm: norm.weight };
    let eps = norm.eps;
    let (scaled, readers) = match readers {
        [
            (_, O::Dense { weights, bias, output: Activation::Projected, .. }),
            (_, O::RopeAppend { head_norms: None }),
            ..,
        ] => (Fused::ScaledProjection { eps, weights: weights.clone(), bias: bias.clone() }, 2),
        [(_, O::DenseSwiGlu { gate, up }), ..] => (Fused::ScaledSwiGlu { eps, gate: *gate, up: *up }, 1),
        _ => return None,
    };
    Some(Link { weighted, scaled, readers })
}
