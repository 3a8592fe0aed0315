"""Builds the artifacts of the device kernels that are written in Rust."""
