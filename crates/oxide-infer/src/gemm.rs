//! Matrix products.

pub mod dense;
pub mod dense_swiglu;

use crate::FloatView;

/// The elements of `[m, k]`, row after row, exactly widened.
fn widened(input: &FloatView<'_, 2>) -> Vec<f64> {
    let [m, k] = input.shape();
    (0..m).flat_map(|row| (0..k).map(move |i| [row, i])).map(|at| f64::from(input.at(at))).collect()
}

/// The sum of products, in order.
fn dot(input: &[f64], weights: &[f32]) -> f64 {
    input.iter().zip(weights).map(|(&x, &w)| x * f64::from(w)).sum()
}
