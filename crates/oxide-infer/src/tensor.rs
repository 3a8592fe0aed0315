//! Host views: what an operand is made of, without a heap allocation per call.

mod float;
mod layout;
mod view;

pub use float::{FloatView, FloatViewMut};
pub use layout::{Dims, Layout, MAX_RANK};
pub use view::{View, ViewMut};
