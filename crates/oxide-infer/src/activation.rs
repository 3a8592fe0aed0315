//! Activations.

pub mod swiglu;
