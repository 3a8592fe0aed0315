//! Fast CPU provider of the Oxide Infer operator contracts.
