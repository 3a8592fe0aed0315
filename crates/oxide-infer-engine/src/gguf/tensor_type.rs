use std::fmt;

/// The element type of a GGUF tensor, by its number in the format.
///
/// Every number is representable: a file may hold tensors that the engine does not compute with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorType(pub u32);

/// Types whose size is known: number, name, elements in a block, bytes in a block.
///
/// From `ggml.h` (`enum ggml_type`) and the block structures in `ggml-common.h`.
const KNOWN: &[(u32, &str, u64, u64)] = &[
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
];

impl TensorType {
    /// 32-bit floats.
    pub const F32: Self = Self(0);
    /// IEEE half precision.
    pub const F16: Self = Self(1);
    /// bfloat16.
    pub const BF16: Self = Self(30);
    /// 32 four-bit numbers and a scale.
    pub const Q4_0: Self = Self(2);
    /// 32 four-bit numbers, a scale and a minimum.
    pub const Q4_1: Self = Self(3);
    /// 32 five-bit numbers and a scale.
    pub const Q5_0: Self = Self(6);
    /// 32 five-bit numbers, a scale and a minimum.
    pub const Q5_1: Self = Self(7);
    /// 32 bytes and a scale.
    pub const Q8_0: Self = Self(8);
    /// 256 four-bit numbers with scales and minima.
    pub const Q4_K: Self = Self(12);
    /// 256 five-bit numbers with scales and minima.
    pub const Q5_K: Self = Self(13);
    /// 256 six-bit numbers with scales.
    pub const Q6_K: Self = Self(14);

    fn known(self) -> Option<&'static (u32, &'static str, u64, u64)> {
        KNOWN.iter().find(|(number, ..)| *number == self.0)
    }

    /// Elements in a block, and bytes in a block, if the type is a known one.
    pub fn block(self) -> Option<(u64, u64)> {
        self.known().map(|&(_, _, elements, bytes)| (elements, bytes))
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some((_, name, ..)) => f.write_str(name),
            None => write!(f, "type {}", self.0),
        }
    }
}
