//! Matrix products.

pub mod dense;
