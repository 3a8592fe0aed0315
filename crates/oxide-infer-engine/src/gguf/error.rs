use super::ValueType;
use std::io;

/// Why a GGUF file was refused, or a metadata value could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file cannot be read.
    #[error("the file cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file does not begin with the magic.
    #[error("not a GGUF file: it begins with {found:02x?}, not with \"GGUF\"")]
    Magic {
        /// The first bytes, as many as there are, up to 4.
        found: Vec<u8>,
    },
    /// The file is in the other byte order.
    #[error("a big-endian GGUF file; only little-endian files are read")]
    BigEndian,
    /// A version that is not 2 or 3.
    #[error("GGUF version {0} is not supported; versions 2 and 3 are")]
    Version(u32),
    /// The file ends inside of something.
    #[error("the file ends inside {what}: {needed} bytes are needed at byte {at}, {left} are left")]
    Truncated {
        /// What was being read.
        what: String,
        /// Where it begins.
        at: u64,
        /// Bytes it takes.
        needed: u64,
        /// Bytes to the end of the file.
        left: u64,
    },
    /// A count that the rest of the file cannot hold.
    #[error("the file claims {count} {what}, and the {left} bytes left hold at most {at_most}")]
    Count {
        /// What is counted.
        what: String,
        /// The claim.
        count: u64,
        /// What could fit.
        at_most: u64,
        /// Bytes to the end of the file.
        left: u64,
    },
    /// A key or tensor name past the format's limit.
    #[error("a {what} of {length} bytes; the limit is {limit}")]
    NameTooLong {
        /// Key or tensor name.
        what: &'static str,
        /// Its length.
        length: u64,
        /// The limit.
        limit: u64,
    },
    /// Text that is not UTF-8.
    #[error("{what} is not UTF-8")]
    NotUtf8 {
        /// Which text.
        what: String,
    },
    /// A value type that the format does not define.
    #[error("metadata {key:?} has value type {value_type}, which the format does not define")]
    UnknownValueType {
        /// The key.
        key: String,
        /// The number.
        value_type: u32,
    },
    /// Arrays nested deeper than any writer does.
    #[error("metadata {key:?} nests arrays more than {limit} deep")]
    NestedTooDeep {
        /// The key.
        key: String,
        /// The limit.
        limit: u32,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("metadata {key:?} holds the boolean {value}; 0 and 1 are defined")]
    Boolean {
        /// The key.
        key: String,
        /// The byte.
        value: u8,
    },
    /// A key or a tensor name that comes twice.
    #[error("the {what} {name:?} comes twice")]
    Duplicate {
        /// Metadata key or tensor.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// `general.alignment` is not usable.
    #[error("general.alignment is {0}; a power of two up to 65536 is expected")]
    Alignment(u64),
    /// A tensor's shape is not usable.
    #[error("tensor {tensor:?} has the shape {shape:?}: {problem}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its dimensions, as far as they were read, outermost first.
        shape: Vec<u64>,
        /// What is wrong with it.
        problem: String,
    },
    /// A tensor's data do not begin on the file's alignment.
    #[error(
        "tensor {tensor:?} begins at offset {offset}, which is not a multiple of the alignment {alignment}"
    )]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Its offset in the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor's data are past the end of the file.
    #[error(
        "tensor {tensor:?} needs bytes {start} to {end} of the data section, which has {available}: \
         the file is truncated or damaged"
    )]
    OutOfFile {
        /// The tensor.
        tensor: String,
        /// Its first byte in the data section.
        start: u64,
        /// Past its last byte.
        end: u64,
        /// Size of the data section.
        available: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors {first:?} and {second:?} overlap in the file")]
    Overlap {
        /// The one that begins first.
        first: String,
        /// The other.
        second: String,
    },
    /// A metadata value is not of the type its reader needs.
    #[error("metadata {key:?} is {found}; {expected} is expected")]
    WrongType {
        /// The key.
        key: String,
        /// What the reader needs.
        expected: &'static str,
        /// What the file has.
        found: ValueType,
    },
    /// A metadata number is outside of what its reader can use.
    #[error("metadata {key:?} is {value}; {expected} is expected")]
    OutOfRange {
        /// The key.
        key: String,
        /// What the reader needs.
        expected: &'static str,
        /// The value.
        value: String,
    },
}
