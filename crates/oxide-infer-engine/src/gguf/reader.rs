use super::GgufError;

/// Reads forward through bytes; nothing is read, or allocated for, past their end.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// What was read since an earlier position.
    pub(super) fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.position]
    }

    pub(super) fn bytes(&mut self, len: u64, what: impl Fn() -> String) -> Result<&'a [u8], GgufError> {
        let rest = &self.bytes[self.position..];
        match usize::try_from(len).ok().and_then(|len| rest.get(..len)) {
            Some(bytes) => {
                self.position += bytes.len();
                Ok(bytes)
            }
            None => Err(GgufError::Truncated {
                what: what(),
                at: self.position as u64,
                needed: len,
                left: rest.len() as u64,
            }),
        }
    }

    pub(super) fn array<const N: usize>(&mut self, what: impl Fn() -> String) -> Result<[u8; N], GgufError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N as u64, what)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self, what: impl Fn() -> String) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: impl Fn() -> String) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Bytes after their 64-bit count.
    pub(super) fn counted_bytes(&mut self, what: impl Fn() -> String) -> Result<&'a [u8], GgufError> {
        let len = self.u64(&what)?;
        self.bytes(len, what)
    }

    /// A 64-bit count of things that take at least `min_bytes` each, which must fit in what is left.
    pub(super) fn count(&mut self, min_bytes: u64, what: impl Fn() -> String) -> Result<usize, GgufError> {
        let count = self.u64(|| format!("the number of {}", what()))?;
        let left = (self.bytes.len() - self.position) as u64;
        let at_most = left / min_bytes;
        if count > at_most {
            return Err(GgufError::Count { what: what(), count, at_most, left });
        }
        // It is at most the length of a slice.
        Ok(count as usize)
    }

    /// A key or a name.
    pub(super) fn name(&mut self, what: &'static str, limit: u64) -> Result<&'a str, GgufError> {
        let length = self.u64(|| format!("a {what}"))?;
        if length > limit {
            return Err(GgufError::NameTooLong { what, length, limit });
        }
        let bytes = self.bytes(length, || format!("a {what}"))?;
        std::str::from_utf8(bytes).map_err(|_| GgufError::NotUtf8 { what: format!("a {what}") })
    }
}
