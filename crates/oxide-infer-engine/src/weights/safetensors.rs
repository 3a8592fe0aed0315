//! The safetensors format: <https://github.com/huggingface/safetensors#format>.

use super::MappedFile;
use ::safetensors::tensor::TensorInfo;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The index of a checkpoint in several files.
const INDEX: &str = "model.safetensors.index.json";
/// The file of a checkpoint in one file.
const SINGLE: &str = "model.safetensors";
/// The format's limit on the header.
const MAX_HEADER: u64 = 100_000_000;
/// Tensors that are missing from their files are listed up to this number.
const MAX_LISTED: usize = 20;

/// Why safetensors files were refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SafetensorsError {
    /// A file cannot be read.
    #[error("{path} cannot be read: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The directory has no safetensors files.
    #[error("{path} has neither model.safetensors nor model.safetensors.index.json{hint}")]
    NoWeights {
        /// The directory.
        path: PathBuf,
        /// What it has instead.
        hint: &'static str,
    },
    /// A file's header is damaged.
    #[error("{path} is not a valid safetensors file: {problem}")]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The index is damaged.
    #[error("{path} is not a valid safetensors index: {problem}")]
    Index {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The index names files that are not there.
    #[error("{path} names files that are not beside it: {}", missing.join(", "))]
    MissingShards {
        /// The index.
        path: PathBuf,
        /// The files.
        missing: Vec<String>,
    },
}

/// The tensors of one or several safetensors files.
#[derive(Debug)]
pub(super) struct SafetensorsFiles {
    files: Vec<MappedFile>,
    tensors: BTreeMap<String, Tensor>,
}

/// A tensor and where it is.
#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) info: TensorInfo,
    file: usize,
    bytes: Range<usize>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl SafetensorsFiles {
    /// Opens the files of a model directory and checks their headers.
    pub(super) fn open(dir: &Path) -> Result<Self, SafetensorsError> {
        let index = dir.join(INDEX);
        if index.is_file() {
            return Self::open_index(dir, &index);
        }
        let single = dir.join(SINGLE);
        if !single.is_file() {
            let has = |name: &str| dir.join(name).exists();
            let hint = if has("pytorch_model.bin") || has("pytorch_model.bin.index.json") {
                "; it has PyTorch files, which must be converted to safetensors first"
            } else if has("consolidated.safetensors") {
                "; consolidated.safetensors has other tensor names and is not read"
            } else {
                ""
            };
            return Err(SafetensorsError::NoWeights { path: dir.to_owned(), hint });
        }
        let mut files = Self { files: Vec::new(), tensors: BTreeMap::new() };
        files.add(&single)?;
        Ok(files)
    }

    fn open_index(dir: &Path, path: &Path) -> Result<Self, SafetensorsError> {
        let problem = |problem: String| SafetensorsError::Index { path: path.to_owned(), problem };
        let text =
            std::fs::read(path).map_err(|source| SafetensorsError::Io { path: path.to_owned(), source })?;
        let index: Index = serde_json::from_slice(&text).map_err(|error| problem(error.to_string()))?;
        let shards: BTreeSet<&String> = index.weight_map.values().collect();
        if let Some(shard) = shards.iter().find(|shard| Path::new(shard).file_name() != Some(shard.as_ref()))
        {
            return Err(problem(format!("{shard:?} is not the name of a file beside it")));
        }
        let missing: Vec<_> =
            shards.iter().filter(|shard| !dir.join(shard).is_file()).map(|s| s.to_string()).collect();
        if !missing.is_empty() {
            return Err(SafetensorsError::MissingShards { path: path.to_owned(), missing });
        }
        let mut files = Self { files: Vec::new(), tensors: BTreeMap::new() };
        for shard in shards {
            files.add(&dir.join(shard))?;
        }
        let absent: Vec<_> =
            index.weight_map.keys().filter(|name| !files.tensors.contains_key(*name)).collect();
        match absent.as_slice() {
            [] => Ok(files),
            names => {
                let listed: Vec<_> = names.iter().take(MAX_LISTED).map(|name| name.as_str()).collect();
                Err(problem(format!(
                    "{} tensors are in none of the files: {}",
                    names.len(),
                    listed.join(", ")
                )))
            }
        }
    }

    /// Adds the tensors of one file.
    fn add(&mut self, path: &Path) -> Result<(), SafetensorsError> {
        let file = MappedFile::open(path)
            .map_err(|source| SafetensorsError::Io { path: path.to_owned(), source })?;
        let tensors = read_header(file.bytes())
            .map_err(|problem| SafetensorsError::Header { path: path.to_owned(), problem })?;
        let index = self.files.len();
        for (name, (info, bytes)) in tensors {
            if self.tensors.contains_key(&name) {
                let problem = format!("tensor {name:?} is in an earlier file already");
                return Err(SafetensorsError::Header { path: path.to_owned(), problem });
            }
            self.tensors.insert(name, Tensor { info, file: index, bytes });
        }
        self.files.push(file);
        Ok(())
    }

    pub(super) fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub(super) fn bytes(&self, tensor: &Tensor) -> &[u8] {
        &self.files[tensor.file].bytes()[tensor.bytes.clone()]
    }

    pub(super) fn release(&self, tensor: &Tensor) {
        self.files[tensor.file].release(tensor.bytes.clone());
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes().len() as u64).sum()
    }
}

/// The tensors of a file with their places in it: each inside the file, of the size its shape and type say, and apart
/// from the others.
fn read_header(file: &[u8]) -> Result<BTreeMap<String, (TensorInfo, Range<usize>)>, String> {
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        return Err(format!("it has {} bytes, and the header's length alone takes 8", file.len()));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER || length > rest.len() as u64 {
        return Err(format!("it claims a header of {length} bytes, and has {} left", rest.len()));
    }
    let (header, data) = rest.split_at(length as usize);
    let mut header: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(header).map_err(|error| format!("its header is not JSON: {error}"))?;
    header.remove("__metadata__");
    let data_start = file.len() - data.len();
    let tensors = header
        .into_iter()
        .map(|(name, value)| {
            let info: TensorInfo =
                serde_json::from_value(value).map_err(|error| format!("tensor {name:?}: {error}"))?;
            let (start, end) = info.data_offsets;
            let bits = info.shape.iter().try_fold(info.dtype.bitsize(), |bits, &dim| bits.checked_mul(dim));
            if end > data.len() || start > end {
                return Err(format!("tensor {name:?} is at {start}..{end} of {} bytes of data", data.len()));
            }
            if bits != (end - start).checked_mul(8) {
                return Err(format!(
                    "tensor {name:?} of type {:?} and shape {:?} is given {} bytes",
                    info.dtype,
                    info.shape,
                    end - start
                ));
            }
            let bytes = data_start + start..data_start + end;
            Ok((name, (info, bytes)))
        })
        .collect::<Result<_, _>>()?;
    refuse_overlaps(&tensors)?;
    Ok(tensors)
}

fn refuse_overlaps(tensors: &BTreeMap<String, (TensorInfo, Range<usize>)>) -> Result<(), String> {
    let places =
        tensors.iter().map(|(name, (_, bytes))| (bytes, name)).filter(|(bytes, _)| !bytes.is_empty());
    let mut places: Vec<_> = places.collect();
    places.sort_unstable_by_key(|(bytes, _)| bytes.start);
    match places.windows(2).find(|pair| pair[0].0.end > pair[1].0.start) {
        Some(pair) => Err(format!("tensors {:?} and {:?} have bytes in common", pair[0].1, pair[1].1)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
