use super::GgufError;
use super::reader::Reader;
use super::tensor_type::TensorType;
use super::value::{MetadataValue, ValueType, read_type};
use std::collections::HashMap;
use std::ops::Range;

/// The format's limit on keys, taken for tensor names too.
const MAX_NAME: u64 = 65_535;
/// ggml's limit on dimensions.
const MAX_DIMENSIONS: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 65_536;

/// A tensor of a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Outermost dimension first: a matrix is `[rows, cols]` (the file has them the other way round).
    pub shape: Vec<u64>,
    /// Its element type.
    pub tensor_type: TensorType,
    /// Its bytes in the file; `None` when the type's size is not known.
    pub(super) bytes: Option<Range<usize>>,
}

impl TensorInfo {
    /// Bytes the tensor takes in the file, if its type's size is known.
    pub fn size(&self) -> Option<usize> {
        self.bytes.as_ref().map(Range::len)
    }
}

/// A metadata key and where its value is.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) value_type: ValueType,
    pub(super) bytes: Range<usize>,
}

/// Everything before the tensors' bytes.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) entries: Vec<Entry>,
    pub(super) tensors: Vec<TensorInfo>,
    /// Where the data section begins.
    pub(super) data_start: usize,
    entry_index: HashMap<String, usize>,
    tensor_index: HashMap<String, usize>,
}

impl Header {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, GgufError> {
        let mut reader = Reader::new(bytes);
        let version = read_version(&mut reader, bytes)?;
        // A tensor takes at least its name's length, its number of dimensions, its type and its offset; a key at least
        // its length, its type and a byte.
        let num_tensors = reader.count(24, || "tensors".to_owned())?;
        let num_entries = reader.count(13, || "metadata keys".to_owned())?;

        let entries = (0..num_entries).map(|_| read_entry(&mut reader)).collect::<Result<Vec<_>, _>>()?;
        let entry_index = index("metadata key", entries.iter().map(|entry| &entry.key))?;
        let alignment = match entry_index.get("general.alignment") {
            Some(&i) => read_alignment(&entries[i], bytes)?,
            None => DEFAULT_ALIGNMENT,
        };

        let raw = (0..num_tensors).map(|_| RawTensor::read(&mut reader)).collect::<Result<Vec<_>, _>>()?;
        let data_start = reader.position().next_multiple_of(alignment as usize);
        let available = bytes.len().saturating_sub(data_start) as u64;
        let tensors = raw
            .into_iter()
            .map(|tensor| tensor.place(alignment, data_start, available))
            .collect::<Result<Vec<_>, _>>()?;
        let tensor_index = index("tensor", tensors.iter().map(|tensor| &tensor.name))?;
        check_overlap(&tensors)?;
        Ok(Self { version, entries, tensors, data_start, entry_index, tensor_index })
    }

    pub(super) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entry_index.get(key).map(|&i| &self.entries[i])
    }

    pub(super) fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensor_index.get(name).map(|&i| &self.tensors[i])
    }
}

fn read_version(reader: &mut Reader<'_>, bytes: &[u8]) -> Result<u32, GgufError> {
    if !bytes.starts_with(b"GGUF") {
        return Err(GgufError::Magic { found: bytes[..bytes.len().min(4)].to_vec() });
    }
    reader.bytes(4, || "the magic".to_owned())?;
    match reader.u32(|| "the version".to_owned())? {
        version @ (2 | 3) => Ok(version),
        version if matches!(version.swap_bytes(), 1..=3) => Err(GgufError::BigEndian),
        version => Err(GgufError::Version(version)),
    }
}

fn read_entry(reader: &mut Reader<'_>) -> Result<Entry, GgufError> {
    let key = reader.name("metadata key", MAX_NAME)?;
    let value_type = read_type(reader, key)?;
    let start = reader.position();
    MetadataValue::read(value_type, reader, key)?;
    Ok(Entry { key: key.to_owned(), value_type, bytes: start..reader.position() })
}

fn read_alignment(entry: &Entry, bytes: &[u8]) -> Result<u64, GgufError> {
    let value =
        MetadataValue::read(entry.value_type, &mut Reader::new(&bytes[entry.bytes.clone()]), &entry.key)?;
    let alignment = value.as_int().ok_or_else(|| GgufError::WrongType {
        key: entry.key.clone(),
        expected: "an integer",
        found: entry.value_type,
    })?;
    let alignment = u64::try_from(alignment).unwrap_or(0);
    if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
        return Err(GgufError::Alignment(alignment));
    }
    Ok(alignment)
}

/// Names to their places; a name that comes twice is an error.
fn index<'a>(
    what: &'static str,
    names: impl Iterator<Item = &'a String>,
) -> Result<HashMap<String, usize>, GgufError> {
    let mut index = HashMap::new();
    for (i, name) in names.enumerate() {
        if index.insert(name.clone(), i).is_some() {
            return Err(GgufError::Duplicate { what, name: name.clone() });
        }
    }
    Ok(index)
}

/// A tensor as the file describes it, not yet placed.
struct RawTensor {
    name: String,
    shape: Vec<u64>,
    tensor_type: TensorType,
    offset: u64,
    /// Elements in a row, the innermost dimension.
    cols: u64,
    elements: u64,
}

impl RawTensor {
    fn read(reader: &mut Reader<'_>) -> Result<Self, GgufError> {
        let name = reader.name("tensor name", MAX_NAME)?.to_owned();
        let what = || format!("the description of tensor {name:?}");
        let rank = reader.u32(what)?;
        if rank > MAX_DIMENSIONS {
            let problem = format!("{rank} dimensions, at most {MAX_DIMENSIONS} are defined");
            return Err(GgufError::Shape { tensor: name, shape: Vec::new(), problem });
        }
        let mut shape = Vec::with_capacity(rank as usize);
        for _ in 0..rank {
            shape.push(reader.u64(what)?);
        }
        let cols = shape.first().copied().unwrap_or(1);
        shape.reverse();
        let tensor_type = TensorType(reader.u32(what)?);
        let offset = reader.u64(what)?;
        let elements = shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim));
        let problem = match elements {
            Some(0) => "a dimension is 0",
            None => "more elements than 64 bits count",
            Some(elements) => return Ok(Self { name, shape, tensor_type, offset, cols, elements }),
        };
        Err(GgufError::Shape { tensor: name, shape, problem: problem.to_owned() })
    }

    /// Where the tensor's bytes are; they must be whole blocks, aligned and inside the data section.
    fn place(self, alignment: u64, data_start: usize, available: u64) -> Result<TensorInfo, GgufError> {
        let Self { name, shape, tensor_type, offset, cols, elements } = self;
        if !offset.is_multiple_of(alignment) {
            return Err(GgufError::Misaligned { tensor: name, offset, alignment });
        }
        let Some((block_elements, block_bytes)) = tensor_type.block() else {
            return Ok(TensorInfo { name, shape, tensor_type, bytes: None });
        };
        if !cols.is_multiple_of(block_elements) {
            let problem = format!("rows of {cols} are not whole blocks of {block_elements} ({tensor_type})");
            return Err(GgufError::Shape { tensor: name, shape, problem });
        }
        let end = (elements / block_elements)
            .checked_mul(block_bytes)
            .and_then(|bytes| offset.checked_add(bytes))
            .unwrap_or(u64::MAX);
        if end > available {
            return Err(GgufError::OutOfFile { tensor: name, start: offset, end, available });
        }
        // Both are inside the file, whose bytes are a slice in memory.
        let bytes = Some(data_start + offset as usize..data_start + end as usize);
        Ok(TensorInfo { name, shape, tensor_type, bytes })
    }
}

fn check_overlap(tensors: &[TensorInfo]) -> Result<(), GgufError> {
    let mut placed: Vec<_> = tensors.iter().filter_map(|t| Some((t.bytes.as_ref()?, &t.name))).collect();
    placed.sort_by_key(|(bytes, _)| bytes.start);
    for pair in placed.windows(2) {
        let [(first, first_name), (second, second_name)] = [pair[0], pair[1]];
        if second.start < first.end {
            return Err(GgufError::Overlap { first: first_name.clone(), second: second_name.clone() });
        }
    }
    Ok(())
}
