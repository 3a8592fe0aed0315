//! Which files of a repository the engine needs.

use super::HubError;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The index of weights that are split over several files.
pub(super) const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
/// Without these a directory cannot be loaded.
const REQUIRED: [&str; 2] = ["config.json", "tokenizer.json"];
/// Taken where a repository has them.
const OPTIONAL: [&str; 5] = [
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// Names a model on the hub: `ORG/REPO`, `ORG/REPO@REVISION`, and after that `:NAME` for one of several `.gguf` files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HubId {
    owner: String,
    name: String,
    revision: Option<String>,
    gguf: Option<String>,
}

impl HubId {
    pub(crate) fn owner(&self) -> &str {
        &self.owner
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The branch, tag or commit; `main` if none was named.
    pub(crate) fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }

    /// The folder of this repository in the cache.
    pub(super) fn cache_folder(&self) -> String {
        format!("models--{}--{}", self.owner, self.name)
    }
}

impl FromStr for HubId {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let wrong = || HubError::Id { text: text.to_owned() };
        let (rest, gguf) = match text.split_once(':') {
            Some((rest, name)) => (rest, Some(name.to_owned())),
            None => (text, None),
        };
        let (repo, revision) = match rest.split_once('@') {
            Some((repo, revision)) => (repo, Some(revision.to_owned())),
            None => (rest, None),
        };
        let (owner, name) = repo.split_once('/').ok_or_else(wrong)?;
        let legal = |part: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            !part.is_empty()
                && !part.starts_with(['.', '-'])
                && !part.contains("..")
                && part.chars().all(allowed)
        };
        let legal_revision =
            |text: &String| !text.is_empty() && !text.split('/').any(|part| matches!(part, "" | "." | ".."));
        let whole =
            gguf.as_ref().is_none_or(|name| !name.is_empty()) && revision.as_ref().is_none_or(legal_revision);
        if legal(owner) && legal(name) && whole {
            Ok(Self { owner: owner.to_owned(), name: name.to_owned(), revision, gguf })
        } else {
            Err(wrong())
        }
    }
}

impl fmt::Display for HubId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        match &self.gguf {
            Some(gguf) => write!(f, ":{gguf}"),
            None => Ok(()),
        }
    }
}

/// Where a model's files lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelFiles {
    /// A directory with safetensors and their companions.
    Directory(PathBuf),
    /// One `.gguf` file.
    Gguf(PathBuf),
}

impl ModelFiles {
    pub(crate) fn path(&self) -> &Path {
        match self {
            ModelFiles::Directory(path) | ModelFiles::Gguf(path) => path,
        }
    }
}

/// The file names of a repository.
pub(super) struct Listing(BTreeSet<String>);

impl Listing {
    pub(super) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        Self(names.map(str::to_owned).collect())
    }

    /// Whether [`Listing::choose`] reads the index.
    pub(super) fn needs_index(&self, id: &HubId) -> bool {
        id.gguf.is_none() && self.0.contains(INDEX) && !self.0.contains(SINGLE)
    }

    /// The files that the engine needs of this repository. `index` gives the text of [`INDEX`].
    pub(super) fn choose(
        &self,
        id: &HubId,
        index: impl FnOnce() -> Option<String>,
    ) -> Result<Vec<String>, HubError> {
        let has = |name: &str| self.0.contains(name);
        if id.gguf.is_some() || (!has(SINGLE) && !has(INDEX) && !self.ggufs().is_empty()) {
            return Ok(vec![self.choose_gguf(id)?]);
        }
        let mut wanted = Vec::new();
        if has(SINGLE) {
            wanted.push(SINGLE.to_owned());
        } else if has(INDEX) {
            wanted.push(INDEX.to_owned());
            wanted.extend(shards(id, &index().unwrap_or_default())?);
        } else {
            return Err(HubError::NoWeights { id: id.to_string(), found: self.0.iter().cloned().collect() });
        }
        if let Some(file) = REQUIRED.into_iter().find(|name| !has(name)) {
            return Err(HubError::Incomplete { id: id.to_string(), file });
        }
        wanted.extend(REQUIRED.into_iter().chain(OPTIONAL).filter(|name| has(name)).map(str::to_owned));
        Ok(wanted)
    }

    /// Where the chosen files lie in a snapshot.
    pub(super) fn model_files(&self, id: &HubId, snapshot: &Path, wanted: &[String]) -> ModelFiles {
        match wanted {
            [only] if id.gguf.is_some() || is_gguf(only) => ModelFiles::Gguf(snapshot.join(only)),
            _ => ModelFiles::Directory(snapshot.to_owned()),
        }
    }

    fn ggufs(&self) -> Vec<&String> {
        self.0.iter().filter(|name| is_gguf(name)).collect()
    }

    fn choose_gguf(&self, id: &HubId) -> Result<String, HubError> {
        let all = self.ggufs();
        let names = || all.iter().map(|name| (*name).clone()).collect();
        let Some(wanted) = &id.gguf else {
            return match all[..] {
                [only] => Ok(only.clone()),
                _ => Err(HubError::ManyGguf { id: id.to_string(), names: names() }),
            };
        };
        if let Some(exact) = all.iter().find(|name| **name == wanted) {
            return Ok((*exact).clone());
        }
        let lower = wanted.to_ascii_lowercase();
        let mut matching = all.iter().filter(|name| name.to_ascii_lowercase().contains(&lower));
        match (matching.next(), matching.next()) {
            (Some(only), None) => Ok((*only).clone()),
            _ => Err(HubError::NoSuchGguf { id: id.to_string(), wanted: wanted.clone(), names: names() }),
        }
    }
}

/// A single `.gguf` model; the parts of a split one (`…-00001-of-00003.gguf`) are not.
fn is_gguf(name: &str) -> bool {
    let Some(stem) = name.strip_suffix(".gguf") else { return false };
    let part =
        stem.rsplit_once("-of-").is_some_and(|(_, count)| count.parse::<u32>().is_ok_and(|count| count > 1));
    !part
}

/// The files that an index names.
fn shards(id: &HubId, index: &str) -> Result<BTreeSet<String>, HubError> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let wrong = |message: String| HubError::Index { id: id.to_string(), message };
    let index: Index = serde_json::from_str(index).map_err(|e| wrong(e.to_string()))?;
    let files: BTreeSet<String> = index.weight_map.into_values().collect();
    match files.iter().find(|name| name.contains('/') || !name.ends_with(".safetensors")) {
        Some(name) => {
            Err(wrong(format!("it names the file {name:?}; expected a .safetensors file beside it")))
        }
        None => Ok(files),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(id: &str, names: &[&str], index: &str) -> Result<Vec<String>, String> {
        let id: HubId = id.parse().map_err(|e: HubError| e.to_string())?;
        let listing = Listing::new(names.iter().copied());
        listing.choose(&id, || Some(index.to_owned())).map_err(|e| e.to_string())
    }

    #[test]
    fn ids_have_an_owner_a_name_a_revision_and_a_file() {
        let id: HubId = "org/repo-1.5".parse().unwrap();
        assert_eq!((id.owner(), id.name(), id.revision()), ("org", "repo-1.5", "main"));
        let id: HubId = "org/repo@refs/pr/3:Q4_K_M".parse().unwrap();
        assert_eq!((id.revision(), id.gguf.as_deref()), ("refs/pr/3", Some("Q4_K_M")));
        assert_eq!(id.to_string(), "org/repo@refs/pr/3:Q4_K_M");
    }

    #[test]
    fn ids_that_could_leave_the_cache_are_refused() {
        for text in
            ["repo", "a/b/c", "/b", "a/", "../b", "a/..", "a/b@", "a/b@../../x", "a/b:", "a/b c", "a/b@/x"]
        {
            assert!(matches!(text.parse::<HubId>(), Err(HubError::Id { .. })), "{text}");
        }
    }

    #[test]
    fn a_single_safetensors_file_comes_with_its_companions_and_nothing_else() {
        let names = [
            ".gitattributes",
            "README.md",
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "onnx/model.onnx",
            "pytorch_model.bin",
            "tokenizer.json",
            "tokenizer_config.json",
        ];
        let wanted = choose("a/b", &names, "").unwrap();
        let expected = [
            "model.safetensors",
            "config.json",
            "tokenizer.json",
            "generation_config.json",
            "tokenizer_config.json",
        ];
        assert_eq!(wanted, expected);
    }

    #[test]
    fn shards_are_those_that_the_index_names() {
        let index = r#"{"weight_map": {"x": "model-00001-of-00002.safetensors", "y": "model-00002-of-00002.safetensors",
            "z": "model-00001-of-00002.safetensors"}}"#;
        let names = [INDEX, "config.json", "tokenizer.json", "consolidated.safetensors"];
        let wanted = choose("a/b", &names, index).unwrap();
        assert_eq!(
            wanted[..3],
            [INDEX, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        );
        let error = choose("a/b", &names, r#"{"weight_map": {"x": "../../etc/passwd"}}"#).unwrap_err();
        assert!(error.contains("../../etc/passwd"), "{error}");
        assert!(choose("a/b", &names, "{}").unwrap_err().contains("weight_map"));
    }

    #[test]
    fn one_gguf_is_taken_and_several_need_a_name() {
        assert_eq!(choose("a/b", &["README.md", "m.gguf"], "").unwrap(), ["m.gguf"]);
        let names = ["m-Q4_0.gguf", "m-Q8_0.gguf", "m-F16-00001-of-00002.gguf"];
        let error = choose("a/b", &names, "").unwrap_err();
        assert!(error.contains("a/b:NAME") && error.contains("m-Q8_0.gguf"), "{error}");
        assert_eq!(choose("a/b:q8_0", &names, "").unwrap(), ["m-Q8_0.gguf"]);
        assert_eq!(choose("a/b:m-Q4_0.gguf", &names, "").unwrap(), ["m-Q4_0.gguf"]);
        for unclear in ["a/b:Q", "a/b:Q5", "a/b:F16"] {
            assert!(choose(unclear, &names, "").unwrap_err().contains("names no single .gguf"), "{unclear}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = choose("a/b", &["config.json", "pytorch_model.bin"], "").unwrap_err();
        assert!(error.contains("pytorch_model.bin") && error.contains("model.safetensors"), "{error}");
        let error = choose("a/b", &["config.json", "model.safetensors"], "").unwrap_err();
        assert!(error.contains("tokenizer.json"), "{error}");
    }
}
