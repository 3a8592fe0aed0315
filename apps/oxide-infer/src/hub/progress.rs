//! Progress of a download, over all its files.

use crate::terminal::Progress;
use hf_hub::progress::{DownloadEvent, FileProgress, ProgressEvent, ProgressHandler};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

pub(super) struct DownloadProgress {
    progress: Progress,
    /// Bytes of each file; a file's count may be reported again and again.
    files: Mutex<HashMap<String, u64>>,
}

impl DownloadProgress {
    pub(super) fn start(what: &str, files: usize, total: u64) -> Self {
        let progress = Progress::start(format!("downloading {what}, {files} files"), total);
        Self { progress, files: Mutex::default() }
    }

    pub(super) fn finish(&self) {
        self.progress.finish("downloaded");
    }

    fn update(&self, changed: &[FileProgress]) {
        // A count is whole whatever a thread that panicked was doing.
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        for file in changed {
            files.insert(file.filename.clone(), file.bytes_completed);
        }
        self.progress.set(files.values().sum());
    }
}

impl ProgressHandler for DownloadProgress {
    fn on_progress(&self, event: &ProgressEvent) {
        if let ProgressEvent::Download(DownloadEvent::Progress { files }) = event {
            self.update(files);
        }
    }
}
