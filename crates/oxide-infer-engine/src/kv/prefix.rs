//! Which full page holds which prefix.
//!
//! A prefix is named by a chain: the name of the prefix before its last page, and the tokens of that page. The chain is
//! looked up by a keyed hash, and the tokens are compared, so a collision can never hand out a page with other content.

use oxide_infer::{PageId, TokenId};
use std::collections::HashMap;
use std::hash::BuildHasher;

/// Names a prefix of full pages. A name is never given twice, so a name that outlives its page leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PrefixId(u64);

impl PrefixId {
    /// The empty prefix.
    pub(crate) const ROOT: Self = Self(0);
}

#[derive(Debug)]
pub(super) struct PrefixIndex<S> {
    page_size: usize,
    hasher: S,
    by_hash: HashMap<u64, PageId>,
    /// `[num_pages]` what each page holds, if it is in the index.
    entries: Vec<Option<Entry>>,
    /// `[num_pages, page_size]` tokens of the pages in the index.
    tokens: Vec<TokenId>,
    /// `[page_size]` tokens of the page in question.
    buffer: Vec<TokenId>,
    last_id: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: PrefixId,
    before: PrefixId,
    hash: u64,
}

impl<S: BuildHasher> PrefixIndex<S> {
    pub(super) fn new(num_pages: usize, page_size: usize, hasher: S) -> Self {
        Self {
            page_size,
            hasher,
            by_hash: HashMap::with_capacity(num_pages),
            entries: vec![None; num_pages],
            tokens: vec![TokenId(0); num_pages * page_size],
            buffer: vec![TokenId(0); page_size],
            last_id: PrefixId::ROOT.0,
        }
    }

    pub(super) fn holds(&self, page: PageId) -> bool {
        self.entries[page.index()].is_some()
    }

    /// The page that holds the tokens after `before`, and the name of the prefix it ends.
    pub(super) fn find(
        &mut self,
        before: PrefixId,
        page_tokens: impl FnOnce(&mut [TokenId]),
    ) -> Option<(PageId, PrefixId)> {
        page_tokens(&mut self.buffer);
        let page = *self.by_hash.get(&self.hash(before))?;
        Some((page, self.id_if_same(page, before)?))
    }

    /// Puts a full page into the index. Returns the name of the prefix it ends, be it held by this page or by another;
    /// `None` if a different prefix has the same hash.
    pub(super) fn insert(
        &mut self,
        page: PageId,
        before: PrefixId,
        page_tokens: impl FnOnce(&mut [TokenId]),
    ) -> Option<PrefixId> {
        if let Some(entry) = self.entries[page.index()] {
            return Some(entry.id);
        }
        page_tokens(&mut self.buffer);
        let hash = self.hash(before);
        if let Some(&other) = self.by_hash.get(&hash) {
            return self.id_if_same(other, before);
        }
        self.last_id += 1;
        let id = PrefixId(self.last_id);
        self.by_hash.insert(hash, page);
        self.entries[page.index()] = Some(Entry { id, before, hash });
        let at = page.index() * self.page_size;
        self.tokens[at..at + self.page_size].copy_from_slice(&self.buffer);
        Some(id)
    }

    /// Forgets a page's content.
    pub(super) fn remove(&mut self, page: PageId) {
        if let Some(entry) = self.entries[page.index()].take() {
            self.by_hash.remove(&entry.hash);
        }
    }

    fn hash(&self, before: PrefixId) -> u64 {
        self.hasher.hash_one((before, self.buffer.as_slice()))
    }

    fn id_if_same(&self, page: PageId, before: PrefixId) -> Option<PrefixId> {
        let entry = self.entries[page.index()]?;
        let at = page.index() * self.page_size;
        let same = entry.before == before && self.tokens[at..at + self.page_size] == self.buffer[..];
        same.then_some(entry.id)
    }
}

#[cfg(test)]
impl<S: BuildHasher> PrefixIndex<S> {
    /// Checks that pages and hashes name each other.
    pub(super) fn audit(&self) {
        let held = self.entries.iter().flatten().count();
        assert_eq!(self.by_hash.len(), held);
        for (hash, page) in &self.by_hash {
            assert_eq!(self.entries[page.index()].map(|entry| entry.hash), Some(*hash), "page {page}");
        }
    }
}
