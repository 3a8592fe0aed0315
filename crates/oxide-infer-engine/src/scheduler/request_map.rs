//! Maps from requests' ids.

use crate::request::RequestId;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Every row of every step is looked up here a few times. The ids are the engine's own count, so nobody can choose them to
/// collide, and a hash without a key halves the cost of a step.
pub(crate) type RequestMap<T> = HashMap<RequestId, T, BuildHasherDefault<CountHasher>>;

/// Spreads consecutive numbers over all bits (Fibonacci hashing, Knuth, volume 3, section 6.4).
#[derive(Default)]
pub(crate) struct CountHasher(u64);

impl Hasher for CountHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, count: u64) {
        self.0 = (self.0 ^ count).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
