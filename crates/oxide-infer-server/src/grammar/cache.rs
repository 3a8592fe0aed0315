//! The few things that were used last.

/// Keeps up to a number of values, and of those the ones that were used last.
#[derive(Debug)]
pub(super) struct Cache<V> {
    capacity: usize,
    /// The one that was used last stands last.
    entries: Vec<(String, V)>,
}

impl<V: Clone> Cache<V> {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, entries: Vec::with_capacity(capacity) }
    }

    pub(super) fn find(&mut self, key: &str) -> Option<V> {
        let at = self.entries.iter().position(|(known, _)| known == key)?;
        self.entries[at..].rotate_left(1);
        self.entries.last().map(|(_, value)| value.clone())
    }

    pub(super) fn insert(&mut self, key: String, value: V) {
        self.entries.retain(|(known, _)| *known != key);
        if self.entries.len() == self.capacity {
            self.entries.remove(0);
        }
        self.entries.push((key, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_longest_is_dropped_first() {
        let mut cache = Cache::new(2);
        cache.insert("a".to_owned(), 1);
        cache.insert("b".to_owned(), 2);
        assert_eq!(cache.find("a"), Some(1));
        cache.insert("c".to_owned(), 3);
        assert_eq!((cache.find("a"), cache.find("b"), cache.find("c")), (Some(1), None, Some(3)));
    }

    #[test]
    fn a_key_has_the_value_it_was_given_last() {
        let mut cache = Cache::new(2);
        cache.insert("a".to_owned(), 1);
        cache.insert("a".to_owned(), 2);
        cache.insert("b".to_owned(), 3);
        assert_eq!((cache.find("a"), cache.find("b")), (Some(2), Some(3)));
    }
}
