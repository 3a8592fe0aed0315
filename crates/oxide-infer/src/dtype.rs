use crate::{FloatView, FloatViewMut, View, ViewMut};
use half::{bf16, f16};
use std::fmt;

/// The element type of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    BF16,
    /// Signed 32-bit integer (block tables, lengths, positions).
    I32,
    /// Unsigned 32-bit integer (token ids).
    U32,
    /// Byte (masks, opaque blocks).
    U8,
}

impl DType {
    /// Bytes that one element takes.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::U8 => 1,
        }
    }

    /// The name used in manifests, errors and documentation.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::U8 => "u8",
        }
    }

    /// Whether the type is one of the floating-point types that contracts compute in.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that stores one element of an operand.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// The element type this Rust type stores.
    const DTYPE: DType;
}

/// A floating-point element: `f32`, `f16` or `bf16`.
pub trait Float: Element {
    /// The value, widened exactly.
    fn to_f32(self) -> f32;
    /// The nearest representable value, ties to even.
    fn from_f32(value: f32) -> Self;
    /// A view with the element type moved from the Rust type to the value.
    fn erase<const R: usize>(view: View<'_, Self, R>) -> FloatView<'_, R>;
    /// As [`Float::erase`], for a write operand.
    fn erase_mut<const R: usize>(view: ViewMut<'_, Self, R>) -> FloatViewMut<'_, R>;
    /// The view of this element type, if it is one.
    fn downcast<const R: usize>(view: FloatView<'_, R>) -> Option<View<'_, Self, R>>;
    /// As [`Float::downcast`], for a write operand.
    fn downcast_mut<const R: usize>(view: FloatViewMut<'_, R>) -> Option<ViewMut<'_, Self, R>>;
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),*) => {
        $(impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        })*
    };
}

element!(f32 => F32, f16 => F16, bf16 => BF16, i32 => I32, u32 => U32, u8 => U8);

macro_rules! float {
    ($($rust:ty => $dtype:ident, $widen:expr, $narrow:expr;)*) => {
        $(impl Float for $rust {
            #[inline]
            fn to_f32(self) -> f32 {
                $widen(self)
            }
            #[inline]
            fn from_f32(value: f32) -> Self {
                $narrow(value)
            }
            fn erase<const R: usize>(view: View<'_, Self, R>) -> FloatView<'_, R> {
                FloatView::$dtype(view)
            }
            fn erase_mut<const R: usize>(view: ViewMut<'_, Self, R>) -> FloatViewMut<'_, R> {
                FloatViewMut::$dtype(view)
            }
            fn downcast<const R: usize>(view: FloatView<'_, R>) -> Option<View<'_, Self, R>> {
                match view {
                    FloatView::$dtype(view) => Some(view),
                    _ => None,
                }
            }
            fn downcast_mut<const R: usize>(view: FloatViewMut<'_, R>) -> Option<ViewMut<'_, Self, R>> {
                match view {
                    FloatViewMut::$dtype(view) => Some(view),
                    _ => None,
                }
            }
        })*
    };
}

float! {
    f32 => F32, std::convert::identity, std::convert::identity;
    f16 => F16, f16::to_f32, f16::from_f32;
    bf16 => BF16, bf16::to_f32, bf16::from_f32;
}
