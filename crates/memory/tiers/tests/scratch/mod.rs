// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A directory of a test's own, gone when the test ends.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub struct Scratch(PathBuf);

impl Scratch {
    /// In the build's own temporary directory, which is on a disk; `/tmp` may be in memory.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("scratch-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    #[allow(dead_code, reason = "each test file that includes this uses its part of it")]
    pub fn is_empty(&self) -> bool {
        self.0.read_dir().unwrap().next().is_none()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A directory that is left is a nuisance, not a failure.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
