//! A list of pages in the order of their last use, with removal from its middle.

use oxide_infer::PageId;

/// A doubly linked list over page numbers: every operation is O(1) and none allocates.
#[derive(Debug)]
pub(super) struct LruList {
    /// Neighbours of each page, and at the end of the head; a page outside the list is its own neighbour.
    links: Vec<Link>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    newer: u32,
}

impl LruList {
    /// An empty list for pages below `num_pages`.
    pub(super) fn new(num_pages: usize) -> Self {
        Self { links: (0..=num_pages as u32).map(|own| Link { older: own, newer: own }).collect(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a page that is not in the list.
    pub(super) fn push_newest(&mut self, page: PageId) {
        let head = self.head();
        let newest = self.links[head as usize].older;
        self.links[page.index()] = Link { older: newest, newer: head };
        self.links[newest as usize].newer = page.0;
        self.links[head as usize].older = page.0;
        self.len += 1;
    }

    /// Takes a page out that is in the list.
    pub(super) fn remove(&mut self, page: PageId) {
        let Link { older, newer } = self.links[page.index()];
        debug_assert!(older != page.0, "page {page} is not in the list");
        self.links[older as usize].newer = newer;
        self.links[newer as usize].older = older;
        self.links[page.index()] = Link { older: page.0, newer: page.0 };
        self.len -= 1;
    }

    pub(super) fn pop_oldest(&mut self) -> Option<PageId> {
        let oldest = self.links[self.head() as usize].newer;
        (oldest != self.head()).then(|| {
            self.remove(PageId(oldest));
            PageId(oldest)
        })
    }

    /// The list's head, whose `newer` is the oldest page and whose `older` is the newest.
    fn head(&self) -> u32 {
        self.links.len() as u32 - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl LruList {
        pub(in crate::kv) fn oldest_first(&self) -> impl Iterator<Item = PageId> {
            let newer = |page: u32| Some(self.links[page as usize].newer).filter(|next| *next != self.head());
            std::iter::successors(newer(self.head()), move |page| newer(*page)).map(PageId)
        }
    }

    #[test]
    fn the_page_pushed_first_leaves_first_and_a_removed_one_not_at_all() {
        let mut list = LruList::new(4);
        assert_eq!(list.pop_oldest(), None);
        for page in [2, 0, 3, 1] {
            list.push_newest(PageId(page));
        }
        list.remove(PageId(0));
        list.remove(PageId(2));
        list.push_newest(PageId(2));
        assert_eq!(list.len(), 3);
        let order: Vec<_> = std::iter::from_fn(|| list.pop_oldest()).map(|page| page.0).collect();
        assert_eq!(order, [3, 1, 2]);
        assert_eq!(list.len(), 0);
    }
}
