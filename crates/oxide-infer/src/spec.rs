use crate::Contract;
use std::fmt::Write;

/// What the specs of all contracts have in common.
///
/// A spec holds what a model fixes: element types, head counts, hidden sizes, semantics. What changes from step to step
/// (rows, sequences, pages) is read off the operands, so one spec serves a model's whole life. Each spec is made by its
/// `new` from a plain `Config` and admits only what the contract defines; [`Spec::config`] gives that back.
pub trait Spec: Clone + std::fmt::Debug + PartialEq + Send + Sync {
    /// The plain fields that a spec is made from.
    type Config;

    /// Name and version.
    const CONTRACT: Contract;

    /// The fields.
    fn config(&self) -> &Self::Config;

    /// What an artifact must match exactly, by name: element types, layouts, which optional operands there are.
    fn properties(&self) -> Vec<(&'static str, &'static str)>;

    /// Sizes that must lie in an artifact's domain, by name.
    fn dimensions(&self) -> Vec<(&'static str, usize)>;

    /// One line for errors and catalogues, for example `normalization.rms_norm v1 {dtype=bf16, …, hidden_size=1536}`.
    fn describe(&self) -> String {
        let mut line = format!("{} {{", Self::CONTRACT);
        let mut separator = "";
        for (name, value) in self.properties() {
            // Writing to a String cannot fail.
            let _ = write!(line, "{separator}{name}={value}");
            separator = ", ";
        }
        for (name, value) in self.dimensions() {
            let _ = write!(line, "{separator}{name}={value}");
            separator = ", ";
        }
        line.push('}');
        line
    }
}

/// Whether a spec has an optional operand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Presence {
    /// The operand is not used and must not be given.
    #[default]
    Absent,
    /// The operand must be given.
    Present,
}

impl Presence {
    /// `absent` or `present`, as manifests write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Present => "present",
        }
    }
}
