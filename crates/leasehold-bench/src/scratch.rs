//! A folder for the files of one run, removed at its end.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::Result;

/// A folder that is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    pub(crate) fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("leasehold-bench-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The store in a database file in it.
    pub(crate) fn sqlite(&self, name: &str) -> String {
        format!("sqlite:{}", self.file(name).display())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Files that are left lie in the folder for temporary files, and do no harm.
        let _left = fs::remove_dir_all(&self.path);
    }
}
