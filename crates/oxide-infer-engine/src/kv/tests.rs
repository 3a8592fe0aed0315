use super::*;
use std::hash::{BuildHasherDefault, Hasher};

impl<S: BuildHasher> Pager<S> {
    /// Checks that every page is in exactly one of its three states.
    pub(crate) fn audit(&self) {
        let mut states = vec![Vec::new(); self.owners.len()];
        self.free.iter().for_each(|page| states[page.index()].push("free"));
        self.cached.oldest_first().for_each(|page| states[page.index()].push("cached"));
        for page in (0..self.owners.len() as u32).map(PageId) {
            if self.owners(page) > 0 {
                states[page.index()].push("owned");
            }
            assert_eq!(states[page.index()].len(), 1, "page {page} is {:?}", states[page.index()]);
            let indexed = self.index.as_ref().is_some_and(|index| index.holds(page));
            match states[page.index()][0] {
                "free" => assert!(!indexed, "page {page} is free and indexed"),
                "cached" => assert!(indexed, "page {page} is cached and not indexed"),
                _ => {}
            }
        }
        if let Some(index) = &self.index {
            index.audit();
        }
    }
}

/// Hashes everything to the same value.
#[derive(Default)]
struct Colliding;

impl Hasher for Colliding {
    fn write(&mut self, _: &[u8]) {}
    fn finish(&self) -> u64 {
        0
    }
}

const PAGE: usize = 2;

fn pager(num_pages: usize) -> Pager {
    Pager::new(num_pages, PAGE, PrefixCache::Enabled)
}

fn fill(tokens: &[u32]) -> impl FnMut(usize, &mut [TokenId]) {
    move |page, buffer| {
        for (token, value) in buffer.iter_mut().zip(&tokens[page * PAGE..]) {
            *token = TokenId(*value);
        }
    }
}

/// Takes and indexes the pages of a sequence.
fn publish<S: BuildHasher>(pager: &mut Pager<S>, tokens: &[u32]) -> Vec<PageId> {
    let mut prefix = Some(PrefixId::ROOT);
    let mut pages = Vec::new();
    for page in 0..tokens.len() / PAGE {
        let own = pager.allocate().unwrap();
        prefix = prefix.and_then(|before| pager.publish(own, before, |buffer| fill(tokens)(page, buffer)));
        pages.push(own);
    }
    pages
}

fn find<S: BuildHasher>(pager: &mut Pager<S>, tokens: &[u32]) -> Vec<PageId> {
    let mut found = Vec::new();
    pager.find_prefix(tokens.len() / PAGE, fill(tokens), &mut found);
    found
}

#[test]
fn a_prefix_is_found_up_to_the_first_page_that_differs() {
    let mut pager = pager(8);
    let pages = publish(&mut pager, &[1, 2, 3, 4, 5, 6]);
    assert_eq!(find(&mut pager, &[1, 2, 3, 4, 5, 6]), pages);
    assert_eq!(find(&mut pager, &[1, 2, 3, 4, 5, 7]), pages[..2]);
    assert_eq!(find(&mut pager, &[1, 2, 3, 9, 5, 6]), pages[..1]);
    // The same tokens after others are another prefix.
    assert_eq!(find(&mut pager, &[3, 4, 5, 6]), []);
    pager.audit();
}

#[test]
fn colliding_hashes_never_give_a_page_of_other_tokens() {
    let hasher = BuildHasherDefault::<Colliding>::default();
    let mut pager = Pager::with_hasher(8, PAGE, PrefixCache::Enabled, hasher);
    let first = publish(&mut pager, &[1, 2]);
    publish(&mut pager, &[3, 4, 5, 6]);
    assert_eq!(find(&mut pager, &[1, 2]), first);
    assert_eq!(find(&mut pager, &[3, 4]), []);
    assert_eq!(find(&mut pager, &[1, 2, 1, 2]), first);
    pager.audit();
}

#[test]
fn a_released_page_stays_findable_until_it_is_the_oldest_and_pages_run_out() {
    let mut pager = pager(4);
    let mut old = publish(&mut pager, &[1, 2, 3, 4]);
    let mut new = publish(&mut pager, &[5, 6, 7, 8]);
    pager.release_all(&mut old);
    pager.release_all(&mut new);
    assert_eq!((pager.used(), pager.available()), (0, 4));
    // The last page of the oldest sequence goes first, so that what is left is still a prefix.
    pager.allocate().unwrap();
    assert_eq!(find(&mut pager, &[1, 2, 3, 4]).len(), 1);
    pager.allocate().unwrap();
    assert_eq!(find(&mut pager, &[1, 2, 3, 4]).len(), 0);
    assert_eq!(find(&mut pager, &[5, 6, 7, 8]).len(), 2);
    pager.audit();
}

#[test]
fn a_cached_page_that_is_used_again_becomes_the_newest() {
    let mut pager = pager(2);
    let mut first = publish(&mut pager, &[1, 2]);
    let mut second = publish(&mut pager, &[3, 4]);
    pager.release_all(&mut first);
    pager.release_all(&mut second);
    let again = find(&mut pager, &[1, 2])[0];
    pager.retain(again);
    assert_eq!(pager.available(), 1);
    pager.release(again);
    pager.allocate().unwrap();
    assert_eq!((find(&mut pager, &[1, 2]).len(), find(&mut pager, &[3, 4]).len()), (1, 0));
    pager.audit();
}

#[test]
fn an_owned_page_is_never_given_away() {
    let mut pager = pager(2);
    publish(&mut pager, &[1, 2, 3, 4]);
    assert_eq!(pager.allocate(), None);
    assert_eq!(pager.available(), 0);
}

#[test]
fn a_second_page_of_the_same_prefix_is_freed_and_not_cached() {
    let mut pager = pager(4);
    let first = publish(&mut pager, &[1, 2]);
    let mut second = publish(&mut pager, &[1, 2]);
    pager.release_all(&mut second);
    assert_eq!(find(&mut pager, &[1, 2]), first);
    pager.audit();
}

#[test]
fn a_chain_goes_on_through_another_sequences_page() {
    let mut pager = pager(4);
    publish(&mut pager, &[1, 2]);
    let longer = publish(&mut pager, &[1, 2, 3, 4]);
    assert_eq!(find(&mut pager, &[1, 2, 3, 4])[1], longer[1]);
}

#[test]
fn without_a_prefix_cache_a_released_page_is_free() {
    let mut pager = Pager::new(1, PAGE, PrefixCache::Disabled);
    let mut pages = publish(&mut pager, &[1, 2]);
    pager.release_all(&mut pages);
    assert_eq!(find(&mut pager, &[1, 2]), []);
    pager.audit();
}
