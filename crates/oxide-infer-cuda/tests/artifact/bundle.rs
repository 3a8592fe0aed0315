//! A small set of artifacts, cut from the embedded ones, that tests spoil in one place.

use oxide_infer_cuda::artifact::manifest::Architecture;
use oxide_infer_cuda::artifact::{Bundle, Registry, RegistryError, Target};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The artifact that tests spoil; it has tensor maps, scalars, pointers and two launches.
pub(crate) const SPOILT: &str = "paged_decode.bf16.64.split.rows16";
/// Another one, to stay as it is.
pub(crate) const WHOLE: &str = "rms_norm.bf16.up_to_256";

/// The two artifacts as files that can be edited.
pub(crate) struct Files(BTreeMap<String, Vec<u8>>);

impl Files {
    /// The two artifacts as they are embedded, without selection rules.
    pub(crate) fn new() -> Self {
        let embedded = Bundle::embedded(Architecture::SM_90A);
        let names = [SPOILT, WHOLE].map(|name| [format!("{name}.json"), format!("{name}.cubin.zst")]);
        let files =
            names.as_flattened().iter().map(|name| (name.clone(), embedded.file(name).unwrap().to_vec()));
        let mut files = Self(files.collect());
        let mut index: Value = serde_json::from_slice(embedded.file("index.json").unwrap()).unwrap();
        index["selection"] = Value::Array(Vec::new());
        index["artifacts"] =
            Value::Object([SPOILT, WHOLE].map(|name| (name.to_owned(), Value::Null)).into_iter().collect());
        files.put_json("index.json", &index);
        files.relist();
        files
    }

    /// Edit a JSON file; the index lists the result.
    pub(crate) fn edit_json(mut self, name: &str, edit: impl FnOnce(&mut Value)) -> Self {
        let mut value = serde_json::from_slice(&self.0[name]).unwrap();
        edit(&mut value);
        self.put_json(name, &value);
        self.relist();
        self
    }

    /// Edit the spoilt artifact's manifest; the index lists the result.
    pub(crate) fn edit_manifest(self, edit: impl FnOnce(&mut Value)) -> Self {
        self.edit_json(&format!("{SPOILT}.json"), edit)
    }

    /// Edit the bytes of a file; nothing else changes.
    pub(crate) fn edit_bytes(mut self, name: &str, edit: impl FnOnce(&mut Vec<u8>)) -> Self {
        edit(self.0.get_mut(name).unwrap());
        self
    }

    /// Edit the spoilt artifact's machine code; the manifest states the result's size and hash.
    pub(crate) fn edit_cubin(mut self, edit: impl FnOnce(&mut Vec<u8>)) -> Self {
        let name = format!("{SPOILT}.cubin.zst");
        let mut cubin = zstd::decode_all(self.0[&name].as_slice()).unwrap();
        edit(&mut cubin);
        self.0.insert(name, zstd::encode_all(cubin.as_slice(), 1).unwrap());
        self.edit_manifest(|manifest| {
            manifest["cubin"]["size"] = cubin.len().into();
            manifest["cubin"]["sha256"] = sha256(&cubin).into();
        })
    }

    /// Replace one artifact by a copy of another under its own name.
    pub(crate) fn copy(mut self, from: &str, to: &str) -> Self {
        for extension in ["json", "cubin.zst"] {
            let content = self.0[&format!("{from}.{extension}")].clone();
            self.0.insert(format!("{to}.{extension}"), content);
        }
        self.edit_json(&format!("{to}.json"), |manifest| {
            manifest["name"] = to.into();
            manifest["cubin"]["file"] = format!("{to}.cubin.zst").into();
        })
    }

    /// Remove a file; nothing else changes.
    pub(crate) fn remove(mut self, name: &str) -> Self {
        self.0.remove(name).unwrap();
        self
    }

    /// Add a file; nothing else changes.
    pub(crate) fn add(mut self, name: &str) -> Self {
        self.0.insert(name.to_owned(), Vec::new());
        self
    }

    /// The content of a file.
    pub(crate) fn file(&self, name: &str) -> &[u8] {
        &self.0[name]
    }

    /// Verify the files as a registry would.
    pub(crate) fn verify(self) -> Result<Registry, RegistryError> {
        let bundle: Bundle = self.0.into_iter().map(|(name, data)| (name, Cow::Owned(data))).collect();
        Registry::verify(&bundle, Target::hopper())
    }

    fn put_json(&mut self, name: &str, value: &Value) {
        self.0.insert(name.to_owned(), serde_json::to_vec(value).unwrap());
    }

    /// Put the present hashes of the manifests into the index.
    fn relist(&mut self) {
        let mut index: Value = serde_json::from_slice(&self.0["index.json"]).unwrap();
        for (name, hash) in index["artifacts"].as_object_mut().into_iter().flatten() {
            if let Some(manifest) = self.0.get(&format!("{name}.json")) {
                *hash = sha256(manifest).into();
            }
        }
        self.put_json("index.json", &index);
    }
}

fn sha256(data: &[u8]) -> String {
    Sha256::digest(data).iter().map(|byte| format!("{byte:02x}")).collect()
}
