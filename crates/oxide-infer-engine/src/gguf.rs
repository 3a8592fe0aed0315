//! The GGUF file format, versions 2 and 3, little-endian.
//!
//! [`Gguf::open`] maps a file and checks everything in its header: counts, names, value types, shapes, and that every
//! tensor's bytes are aligned, inside the file and nobody else's. Values are read from the map when they are asked for.
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod error;
mod header;
mod reader;
mod tensor_type;
mod value;

pub use error::GgufError;
pub use header::TensorInfo;
pub use tensor_type::TensorType;
pub use value::{MetadataArray, MetadataValue, ValueType};

use crate::weights::MappedFile;
use header::Header;
use reader::Reader;
use std::path::Path;

/// An open GGUF file.
#[derive(Debug)]
pub struct Gguf {
    file: MappedFile,
    header: Header,
}

impl Gguf {
    /// Opens a file and checks its header.
    ///
    /// # Errors
    /// [`GgufError`], naming what is wrong and where.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let file = MappedFile::open(path)?;
        let header = Header::parse(file.bytes())?;
        Ok(Self { file, header })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Size of the file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.file.bytes().len() as u64
    }

    /// The format's version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.header.version
    }

    /// Metadata keys in the order of the file.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.header.entries.iter().map(|entry| entry.key.as_str())
    }

    /// The metadata value of a key, if the file has it.
    ///
    /// # Errors
    /// Only when the file was changed after it was opened: the value was checked then.
    pub fn get<'a>(&'a self, key: &str) -> Result<Option<MetadataValue<'a>>, GgufError> {
        let Some(entry) = self.header.entry(key) else { return Ok(None) };
        let mut reader = Reader::new(&self.file.bytes()[entry.bytes.clone()]);
        MetadataValue::read(entry.value_type, &mut reader, &entry.key).map(Some)
    }

    /// The text of a key.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] when the value is not a string.
    pub fn string<'a>(&'a self, key: &str) -> Result<Option<&'a str>, GgufError> {
        self.typed(key, "a string", |value| match value {
            MetadataValue::String(text) => Some(text),
            _ => None,
        })
    }

    /// The truth value of a key.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] when the value is not a boolean.
    pub fn boolean(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "a boolean", |value| match value {
            MetadataValue::Bool(flag) => Some(flag),
            _ => None,
        })
    }

    /// The number of a key, of any integer type: writers differ in which they use.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] when it is no integer, [`GgufError::OutOfRange`] when it does not fit a `u32`.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        let value = self.typed(key, "an integer", |value| value.as_int())?;
        value
            .map(|value| {
                u32::try_from(value).map_err(|_| GgufError::OutOfRange {
                    key: key.to_owned(),
                    expected: "a number from 0 to 4294967295",
                    value: value.to_string(),
                })
            })
            .transpose()
    }

    /// The number of a key, of either float type.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] when it is no float.
    pub fn float(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.typed(key, "a float", |value| value.as_float())
    }

    /// The texts of an array, borrowed from the file.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] when the value is no array of strings, [`GgufError::NotUtf8`] when one is not UTF-8.
    pub fn strings<'a>(&'a self, key: &str) -> Result<Option<Vec<&'a str>>, GgufError> {
        self.elements(key, "an array of strings", |value| match value {
            MetadataValue::String(text) => Some(text),
            _ => None,
        })
    }

    /// The numbers of an array of any integer type.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] when the value is no array of integers, [`GgufError::OutOfRange`] when one does not
    /// fit an `i64`.
    pub fn ints(&self, key: &str) -> Result<Option<Vec<i64>>, GgufError> {
        let Some(values) = self.elements(key, "an array of integers", |value| value.as_int())? else {
            return Ok(None);
        };
        let fit = |value: i128| {
            i64::try_from(value).map_err(|_| GgufError::OutOfRange {
                key: key.to_owned(),
                expected: "numbers of 64 bits with a sign",
                value: value.to_string(),
            })
        };
        values.into_iter().map(fit).collect::<Result<_, _>>().map(Some)
    }

    /// The numbers of an array of either float type.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] when the value is no array of floats.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f64>>, GgufError> {
        self.elements(key, "an array of floats", |value| value.as_float())
    }

    /// The tensors in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.header.tensors
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.header.tensor(name)
    }

    /// The tensor's bytes, or `None` when its type is one whose size is not known.
    pub fn data(&self, tensor: &TensorInfo) -> Option<&[u8]> {
        self.file.bytes().get(tensor.bytes.clone()?)
    }

    /// Tells the system that the tensor's bytes have been used, so that they stop counting as this process's memory.
    pub fn release(&self, tensor: &TensorInfo) {
        if let Some(range) = tensor.bytes.clone() {
            self.file.release(range);
        }
    }

    /// As [`Self::release`], for the header with its metadata.
    pub fn release_header(&self) {
        self.file.release(0..self.header.data_start);
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        cast: impl Fn(MetadataValue<'a>) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key)? else { return Ok(None) };
        let found = value.value_type();
        cast(value).map(Some).ok_or_else(|| GgufError::WrongType { key: key.to_owned(), expected, found })
    }

    fn elements<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        cast: impl Fn(MetadataValue<'a>) -> Option<T>,
    ) -> Result<Option<Vec<T>>, GgufError> {
        let array = self.typed(key, expected, |value| match value {
            MetadataValue::Array(array) => Some(array),
            _ => None,
        })?;
        let Some(array) = array else { return Ok(None) };
        let mut elements = Vec::with_capacity(array.len());
        for value in array.iter() {
            let value = value?;
            elements.push(cast(value).ok_or_else(|| GgufError::WrongType {
                key: key.to_owned(),
                expected,
                found: ValueType::Array,
            })?);
        }
        Ok(Some(elements))
    }
}

#[cfg(test)]
mod tests;
