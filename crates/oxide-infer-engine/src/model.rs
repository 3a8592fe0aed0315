//! What a model is: its configuration, and the operators it is made of.
//!
//! [`ModelConfig`] is read from a `config.json` or from GGUF metadata and validated.

mod architecture;
mod config;
mod gguf_config;
mod json_config;
mod rope;

pub use architecture::Architecture;
pub use config::{Biases, ConfigError, ModelConfig, OutputHead, QkNorm};
pub use rope::{RopeConfig, RopeScaling, YarnRamp};
