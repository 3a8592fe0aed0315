//! Operator contracts of Oxide Infer: specs, operands, typed errors and CPU references.
