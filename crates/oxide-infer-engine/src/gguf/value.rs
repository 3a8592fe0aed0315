use super::GgufError;
use super::reader::Reader;
use std::fmt;

/// Arrays inside arrays: the format allows any depth, no known writer goes past 1.
const MAX_NESTING: u32 = 4;

/// The type of a metadata value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    /// In the order of their numbers in the format.
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// The least bytes that a value takes, and all that it takes unless it is a string or an array.
    fn min_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::U8 => "a u8",
            Self::I8 => "an i8",
            Self::U16 => "a u16",
            Self::I16 => "an i16",
            Self::U32 => "a u32",
            Self::I32 => "an i32",
            Self::F32 => "an f32",
            Self::Bool => "a boolean",
            Self::String => "a string",
            Self::Array => "an array",
            Self::U64 => "a u64",
            Self::I64 => "an i64",
            Self::F64 => "an f64",
        })
    }
}

/// A metadata value, borrowed from the file.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum MetadataValue<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(&'a str),
    Array(MetadataArray<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> MetadataValue<'a> {
    /// The value's type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The value of any integer type.
    pub fn as_int(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// The value of either float type.
    pub fn as_float(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            _ => None,
        }
    }

    /// Reads one value of a known type: its bytes are checked, and arrays are walked to their end.
    pub(super) fn read(
        value_type: ValueType,
        reader: &mut Reader<'a>,
        key: &'a str,
    ) -> Result<Self, GgufError> {
        Self::read_nested(value_type, reader, key, 0)
    }

    fn read_nested(
        value_type: ValueType,
        reader: &mut Reader<'a>,
        key: &'a str,
        depth: u32,
    ) -> Result<Self, GgufError> {
        let what = || format!("metadata {key:?}");
        Ok(match value_type {
            ValueType::U8 => Self::U8(u8::from_le_bytes(reader.array(what)?)),
            ValueType::I8 => Self::I8(i8::from_le_bytes(reader.array(what)?)),
            ValueType::U16 => Self::U16(u16::from_le_bytes(reader.array(what)?)),
            ValueType::I16 => Self::I16(i16::from_le_bytes(reader.array(what)?)),
            ValueType::U32 => Self::U32(u32::from_le_bytes(reader.array(what)?)),
            ValueType::I32 => Self::I32(i32::from_le_bytes(reader.array(what)?)),
            ValueType::F32 => Self::F32(f32::from_le_bytes(reader.array(what)?)),
            ValueType::U64 => Self::U64(u64::from_le_bytes(reader.array(what)?)),
            ValueType::I64 => Self::I64(i64::from_le_bytes(reader.array(what)?)),
            ValueType::F64 => Self::F64(f64::from_le_bytes(reader.array(what)?)),
            ValueType::Bool => match reader.array::<1>(what)?[0] {
                0 => Self::Bool(false),
                1 => Self::Bool(true),
                value => return Err(GgufError::Boolean { key: key.to_owned(), value }),
            },
            ValueType::String => {
                let bytes = reader.counted_bytes(what)?;
                Self::String(std::str::from_utf8(bytes).map_err(|_| GgufError::NotUtf8 { what: what() })?)
            }
            ValueType::Array => Self::Array(MetadataArray::read(reader, key, depth)?),
        })
    }
}

impl fmt::Display for MetadataValue<'_> {
    /// The value as a reader wants to see it: numbers and text as they are, of an array its length and type.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(v) => v.fmt(f),
            Self::I8(v) => v.fmt(f),
            Self::U16(v) => v.fmt(f),
            Self::I16(v) => v.fmt(f),
            Self::U32(v) => v.fmt(f),
            Self::I32(v) => v.fmt(f),
            Self::F32(v) => v.fmt(f),
            Self::Bool(v) => v.fmt(f),
            Self::String(v) => write!(f, "{v:?}"),
            Self::Array(v) => write!(f, "[{} values, each {}]", v.len(), v.element_type()),
            Self::U64(v) => v.fmt(f),
            Self::I64(v) => v.fmt(f),
            Self::F64(v) => v.fmt(f),
        }
    }
}

/// The elements of a metadata array, still in the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MetadataArray<'a> {
    key: &'a str,
    element_type: ValueType,
    len: usize,
    bytes: &'a [u8],
}

impl<'a> MetadataArray<'a> {
    /// The type of every element.
    pub fn element_type(&self) -> ValueType {
        self.element_type
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements in order. A text that is not UTF-8 is an error of that element.
    pub fn iter(&self) -> impl Iterator<Item = Result<MetadataValue<'a>, GgufError>> + use<'a> {
        let Self { key, element_type, len, bytes } = *self;
        let mut reader = Reader::new(bytes);
        (0..len).map(move |_| MetadataValue::read(element_type, &mut reader, key))
    }

    fn read(reader: &mut Reader<'a>, key: &'a str, depth: u32) -> Result<Self, GgufError> {
        if depth == MAX_NESTING {
            return Err(GgufError::NestedTooDeep { key: key.to_owned(), limit: MAX_NESTING });
        }
        let what = || format!("metadata {key:?}");
        let element_type = read_type(reader, key)?;
        let len = reader.count(element_type.min_bytes(), || format!("elements of metadata {key:?}"))?;
        let start = reader.position();
        match element_type {
            ValueType::String => (0..len).try_for_each(|_| reader.counted_bytes(what).map(drop))?,
            ValueType::Array | ValueType::Bool => {
                for _ in 0..len {
                    MetadataValue::read_nested(element_type, reader, key, depth + 1)?;
                }
            }
            _ => reader.bytes(len as u64 * element_type.min_bytes(), what).map(drop)?,
        }
        Ok(Self { key, element_type, len, bytes: reader.since(start) })
    }
}

/// Reads a value type's number.
pub(super) fn read_type(reader: &mut Reader<'_>, key: &str) -> Result<ValueType, GgufError> {
    let value_type = u32::from_le_bytes(reader.array(|| format!("the type of metadata {key:?}"))?);
    ValueType::from_number(value_type)
        .ok_or_else(|| GgufError::UnknownValueType { key: key.to_owned(), value_type })
}
