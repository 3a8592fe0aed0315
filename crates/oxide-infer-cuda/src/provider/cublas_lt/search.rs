use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Names of the library's versions that this one works with, newest first.
const NAMES: [&str; 2] = ["libcublasLt.so.13", "libcublasLt.so.12"];

/// Where cuBLASLt is looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Search {
    /// Where the environment variable [`Search::VARIABLE`] says, and nowhere else; if it is not set, where the dynamic loader
    /// looks, then in the CUDA toolkit's folder and in those of Python packages (`nvidia/cu13`, `nvidia/cublas`).
    #[default]
    Usual,
    /// This file, or in this folder, and nowhere else.
    At(PathBuf),
}

impl Search {
    /// Names a file or a folder.
    pub const VARIABLE: &'static str = "OXIDE_INFER_CUBLASLT";

    /// What is tried, in order: names for the dynamic loader, and files.
    pub(super) fn places(&self) -> Vec<PathBuf> {
        self.places_in(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn places_in(&self, variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
        match self {
            Self::At(path) => at(path),
            Self::Usual => match variable(Self::VARIABLE) {
                Some(path) => at(Path::new(&path)),
                None => usual(variable),
            },
        }
    }
}

fn at(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() { NAMES.map(|name| path.join(name)).to_vec() } else { vec![path.to_owned()] }
}

fn usual(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let of = |name| variable(name).map(PathBuf::from);
    let toolkits = [of("CUDA_HOME"), of("CUDA_PATH"), Some(PathBuf::from("/usr/local/cuda"))];
    let toolkits = toolkits.into_iter().flatten().map(|toolkit| toolkit.join("lib64"));
    let prefixes = [of("VIRTUAL_ENV"), of("CONDA_PREFIX"), Some("/usr/local".into()), Some("/usr".into())];
    let packages = prefixes.into_iter().flatten().flat_map(|prefix| python_folders(&prefix));
    let folders: Vec<PathBuf> = toolkits.chain(packages).collect();
    let files = folders.iter().flat_map(|folder| NAMES.map(|name| folder.join(name)));
    NAMES.map(PathBuf::from).into_iter().chain(files).collect()
}

/// Folders of the library in the Python packages of one installation that are there.
fn python_folders(prefix: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(prefix.join("lib")) else { return Vec::new() };
    let pythons = entries.flatten().map(|entry| entry.path());
    let mut pythons: Vec<_> = pythons
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3")))
        .collect();
    pythons.sort_unstable();
    let packages = ["site-packages", "dist-packages"];
    let folders = packages
        .map(|packages| ["nvidia/cu13/lib", "nvidia/cublas/lib"].map(|lib| Path::new(packages).join(lib)));
    let folders = folders.as_flattened();
    let all = pythons.iter().flat_map(|python| folders.iter().map(|folder| python.join(folder)));
    all.filter(|folder| folder.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_named_is_the_only_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libcublasLt.so.13.1");
        assert_eq!(Search::At(file.clone()).places_in(|_| None), std::slice::from_ref(&file));
        let set = |name: &str| (name == Search::VARIABLE).then(|| folder.path().into());
        let expected = ["libcublasLt.so.13", "libcublasLt.so.12"].map(|name| folder.path().join(name));
        assert_eq!(Search::Usual.places_in(set), expected);
        assert_eq!(Search::At(file.clone()).places_in(set), [file], "an argument goes before the variable");
    }

    #[test]
    fn usual_places_are_the_loaders_the_toolkits_and_those_of_python_packages() {
        let home = tempfile::tempdir().unwrap();
        let wheel = home.path().join("lib/python3.12/site-packages/nvidia/cu13/lib");
        std::fs::create_dir_all(&wheel).unwrap();
        std::fs::create_dir_all(home.path().join("lib/python3.9/site-packages")).unwrap();
        let variable = |name: &str| match name {
            "CUDA_HOME" => Some("/opt/cuda".into()),
            "VIRTUAL_ENV" => Some(home.path().into()),
            _ => None,
        };
        let places = Search::Usual.places_in(variable);
        assert_eq!(places[..2], ["libcublasLt.so.13", "libcublasLt.so.12"].map(PathBuf::from));
        assert_eq!(places[2], Path::new("/opt/cuda/lib64/libcublasLt.so.13"));
        assert_eq!(places[4], Path::new("/usr/local/cuda/lib64/libcublasLt.so.13"));
        assert_eq!(places[6..8], [wheel.join("libcublasLt.so.13"), wheel.join("libcublasLt.so.12")]);
    }
}
