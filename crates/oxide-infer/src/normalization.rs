//! Normalization.

pub mod rms_norm;
