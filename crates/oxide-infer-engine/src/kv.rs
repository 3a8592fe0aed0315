//! The KV pager: who owns which page, and which pages hold a prefix that can be used again.
//!
//! A page is in one of three states. *Free*: nobody owns it and its content means nothing. *Owned*: one or more sequences
//! have it in their block tables, and its count says how many. *Cached*: nobody owns it, but it is full and indexed by
//! the tokens up to its end, so that a later sequence can take it; the least recently used is given away when the free
//! pages run out. Only a page with one owner is written, and only before it is indexed.

mod lru;
mod prefix;

use lru::LruList;
use oxide_infer::{PageId, TokenId};
use prefix::PrefixIndex;
use std::hash::{BuildHasher, RandomState};

pub(crate) use prefix::PrefixId;

/// Whether prompts reuse pages that earlier sequences computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefixCache {
    /// They do.
    #[default]
    Enabled,
    /// Every prompt is computed from its start.
    Disabled,
}

/// The pages of one pool. `S` hashes prefixes.
#[derive(Debug)]
pub(crate) struct Pager<S = RandomState> {
    page_size: usize,
    /// `[num_pages]` owners of each page.
    owners: Vec<u32>,
    free: Vec<PageId>,
    /// Pages without an owner that are in the index.
    cached: LruList,
    index: Option<PrefixIndex<S>>,
}

impl Pager {
    /// A pool in which every page is free.
    pub(crate) fn new(num_pages: usize, page_size: usize, prefix_cache: PrefixCache) -> Self {
        Self::with_hasher(num_pages, page_size, prefix_cache, RandomState::new())
    }
}

impl<S: BuildHasher> Pager<S> {
    /// A pool that hashes prefixes with the given hasher.
    pub(crate) fn with_hasher(
        num_pages: usize,
        page_size: usize,
        prefix_cache: PrefixCache,
        hasher: S,
    ) -> Self {
        Self {
            page_size,
            owners: vec![0; num_pages],
            // The last is taken first, so that a fresh pool is used from page 0 on.
            free: (0..num_pages as u32).rev().map(PageId).collect(),
            cached: LruList::new(num_pages),
            index: match prefix_cache {
                PrefixCache::Enabled => Some(PrefixIndex::new(num_pages, page_size, hasher)),
                PrefixCache::Disabled => None,
            },
        }
    }

    /// Pages that hold this many tokens.
    pub(crate) fn pages_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.page_size)
    }

    /// Pages that can be allocated now: free ones and cached ones.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.cached.len()
    }

    /// Pages that sequences own.
    pub(crate) fn used(&self) -> usize {
        self.owners.len() - self.available()
    }

    /// Sequences that own the page.
    pub(crate) fn owners(&self, page: PageId) -> u32 {
        self.owners[page.index()]
    }

    /// Takes a page for one owner: a free one, or else the cached one that was used least recently.
    pub(crate) fn allocate(&mut self) -> Option<PageId> {
        let page = self.free.pop().or_else(|| self.evict())?;
        self.owners[page.index()] = 1;
        Some(page)
    }

    /// Adds an owner to a page that is owned or cached.
    pub(crate) fn retain(&mut self, page: PageId) {
        if self.owners[page.index()] == 0 {
            self.cached.remove(page);
        }
        self.owners[page.index()] += 1;
    }

    /// Takes an owner from a page.
    pub(crate) fn release(&mut self, page: PageId) {
        let owners = &mut self.owners[page.index()];
        debug_assert!(*owners > 0, "page {page} is released more often than it was taken");
        *owners -= 1;
        if *owners > 0 {
            return;
        }
        match self.index.as_ref().is_some_and(|index| index.holds(page)) {
            true => self.cached.push_newest(page),
            false => self.free.push(page),
        }
    }

    /// Releases a block table and leaves it empty.
    ///
    /// The last page first: a page is never cached longer than the pages before it, without which nothing finds it.
    pub(crate) fn release_all(&mut self, pages: &mut Vec<PageId>) {
        while let Some(page) = pages.pop() {
            self.release(page);
        }
    }

    /// Appends to `found` the cached or owned pages that hold the first tokens of a sequence, at most `limit` of them,
    /// and returns the name of the prefix they end. `page_tokens(i, buffer)` fills the buffer with the tokens of page
    /// `i`. The pages are not retained.
    pub(crate) fn find_prefix(
        &mut self,
        limit: usize,
        mut page_tokens: impl FnMut(usize, &mut [TokenId]),
        found: &mut Vec<PageId>,
    ) -> PrefixId {
        let mut prefix = PrefixId::ROOT;
        let Some(index) = &mut self.index else { return prefix };
        for page in 0..limit {
            let hit = index.find(prefix, |buffer| page_tokens(page, buffer));
            let Some((page, id)) = hit else { break };
            found.push(page);
            prefix = id;
        }
        prefix
    }

    /// Indexes an owned page that has been filled: it holds the tokens that follow `before`. Returns the name of the
    /// prefix that it ends, or `None` if the chain cannot go on (no cache, or two prefixes with one hash).
    ///
    /// If another page holds the same prefix already, that one stays indexed and this one does not become so.
    pub(crate) fn publish(
        &mut self,
        page: PageId,
        before: PrefixId,
        page_tokens: impl FnOnce(&mut [TokenId]),
    ) -> Option<PrefixId> {
        debug_assert!(self.owners(page) > 0, "page {page} is published without an owner");
        self.index.as_mut()?.insert(page, before, page_tokens)
    }

    fn evict(&mut self) -> Option<PageId> {
        let page = self.cached.pop_oldest()?;
        if let Some(index) = &mut self.index {
            index.remove(page);
        }
        Some(page)
    }
}

#[cfg(test)]
mod tests;
