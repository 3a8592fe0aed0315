//! What a model is: its configuration, and the operators it is made of.
//!
//! [`ModelConfig`] is read from a `config.json` or from GGUF metadata and validated. [`DenseDecoder`] lists the model's
//! operators with the weights they refer to; executors lower that list, and [`Naming`] says what files call the weights.

mod architecture;
mod config;
mod decoder;
mod gguf_config;
mod json_config;
mod naming;
mod rope;

pub use architecture::Architecture;
pub use config::{Biases, ConfigError, ModelConfig, OutputHead, QkNorm};
pub use decoder::{Buffer, DenseDecoder, Matrix, Operator, Vector, WeightId, WeightRef, WeightRole, Write};
pub use naming::{Naming, RotaryRows};
pub use rope::RopeConfig;
