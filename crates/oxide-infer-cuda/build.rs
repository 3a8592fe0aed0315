//! Embeds the committed kernel artifacts: every file of every folder `artifacts/<architecture>/`.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("artifacts");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut code = String::from("/// Architecture, file name and content of every embedded file.\n");
    code.push_str("pub(super) const FILES: &[(&str, &str, &[u8])] = &[\n");
    for folder in sorted(&root)? {
        for file in sorted(&folder)? {
            writeln!(code, "    ({:?}, {:?}, include_bytes!({file:?})),", name(&folder)?, name(&file)?)?;
        }
    }
    code.push_str("];\n");
    fs::write(PathBuf::from(std::env::var("OUT_DIR")?).join("embedded_artifacts.rs"), code)?;
    Ok(())
}

fn sorted(folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut paths =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, std::io::Error>>()?;
    paths.sort();
    Ok(paths)
}

fn name(path: &Path) -> Result<&str, Box<dyn Error>> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.ok_or_else(|| format!("{} has no readable name", path.display()).into())
}
