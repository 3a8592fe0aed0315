use memmap2::{Mmap, UncheckedAdvice};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A whole file, mapped read-only.
///
/// The file must not be truncated while it is mapped: reading a page that is gone ends the process, as it does for
/// every program that maps its models.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    /// Maps a file.
    ///
    /// # Errors
    /// What the system says when the path cannot be opened or mapped; a directory is
    /// [`io::ErrorKind::IsADirectory`].
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if file.metadata()?.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        // SAFETY: the map is read-only and private to this process's view of the file. Another process that writes
        // the file can change bytes under us: everything decoded from the map is checked where it is decoded, and
        // weights are plain numbers, for which every bit pattern is a value.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self { path: path.to_owned(), map })
    }

    /// The file's contents.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells the system that these bytes are not needed for now, so that they stop counting as this process's memory.
    /// Reading them again is allowed and reads the file again.
    pub fn release(&self, range: Range<usize>) {
        let page = PAGE;
        let start = range.start.next_multiple_of(page);
        let end = range.end.min(self.map.len()) / page * page;
        if start >= end {
            return;
        }
        // SAFETY: the range is inside the map and the map is a file's, never written through: dropping its pages
        // makes later reads fetch the same bytes from the file.
        let advised =
            unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
        if let Err(error) = advised {
            tracing::debug!(path = %self.path.display(), %error, "the system kept pages of the file");
        }
    }
}

/// Granularity of [`MappedFile::release`]: at least the page size of every system this runs on.
const PAGE: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_pages_read_the_same_bytes_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let content: Vec<u8> = (0..3 * PAGE + 5).map(|i| (i % 251) as u8).collect();
        std::fs::write(file.path(), &content).unwrap();
        let mapped = MappedFile::open(file.path()).unwrap();
        assert_eq!(mapped.bytes(), content);
        mapped.release(1..content.len());
        assert_eq!(mapped.bytes(), content);
        mapped.release(content.len()..content.len() + 10 * PAGE);
    }

    #[test]
    fn a_directory_and_a_missing_file_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(MappedFile::open(dir.path()).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert_eq!(MappedFile::open(&dir.path().join("no")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
