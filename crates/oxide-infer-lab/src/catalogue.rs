//! `docs/operators.md`, as far as the artifact registry and the evidence records decide it.
//!
//! [`evidence`] reads the records, [`state`] says what they show of one artifact's machine code, [`tables`] writes that as
//! Markdown, and [`marks`] puts it between the marks of the document, whose prose stays as it is.

mod evidence;
mod marks;
mod native;
mod sanitized;
mod state;
mod tables;
#[cfg(test)]
mod tests;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use evidence::Evidence;
use oxide_infer_cuda::artifact::{Registry, Target};
use std::fs;
use std::path::{Path, PathBuf};

/// Write what the artifacts and the evidence records show into the operator catalogue
///
/// Needs no device. Only what stands between the file's marks is written.
///
/// Example: oxide-infer-lab catalogue --check
#[derive(Args, Debug)]
pub(crate) struct CatalogueOptions {
    /// Folder of the records; the file's folder, or in it, since the file links to them.
    #[arg(long, default_value = "docs/evidence")]
    evidence: PathBuf,
    /// The catalogue.
    #[arg(long, default_value = "docs/operators.md")]
    file: PathBuf,
    /// Change nothing; fail and show the difference if the file is not what would be written.
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(options: &CatalogueOptions) -> Result<()> {
    let file = options.file.display();
    let before = fs::read_to_string(&options.file).with_context(|| format!("reading {file}"))?;
    let after = updated(&before, &options.file, &options.evidence)?;
    if !options.check {
        return fs::write(&options.file, after).with_context(|| format!("writing {file}"));
    }
    match marks::difference(&before, &after) {
        None => Ok(()),
        Some(difference) => bail!(
            "{file} is not what the artifacts and the records give; `make catalogue` writes it\n{difference}"
        ),
    }
}

/// The text of the catalogue at `file` with what its marks surround made anew.
fn updated(text: &str, file: &Path, folder: &Path) -> Result<String> {
    let registries = [Registry::embedded(Target::hopper()), Registry::embedded_native(Target::hopper())];
    let [tile, native] =
        registries.map(|registry| registry.context("the artifacts in this binary are not valid"));
    let (tile, native) = (tile?, native?);
    let links = tables::Links::new(file, folder)?;
    let evidence = Evidence::read(folder)?;
    tables::blocks([&tile, &native], &evidence, &links, text)?
        .iter()
        .try_fold(text.to_owned(), |text, (name, block)| marks::replace(&text, name, block))
        .with_context(|| format!("in {}", file.display()))
}
