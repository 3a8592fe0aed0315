//! The `oxide-infer` command.
fn main() {}
