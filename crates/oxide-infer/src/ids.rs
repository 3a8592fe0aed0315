use serde::{Deserialize, Serialize};
use std::fmt;

/// A vocabulary entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[repr(transparent)]
pub struct TokenId(pub u32);

/// A page of the paged KV pool: an index into the page axis of every layer's K and V pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[repr(transparent)]
pub struct PageId(pub u32);

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<u32> for TokenId {
    fn from(id: u32) -> Self {
        Self(id)
    }
}

impl TokenId {
    /// The id as an index into a vocabulary-sized table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl PageId {
    /// The id as an index into a page-sized table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
