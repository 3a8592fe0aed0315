//! Positions.

pub mod rope;
