//! Small C libraries that a program loads before its own C library.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::error::{Doing, Error, Result};
use crate::folder::Folder;
use crate::programs;

/// The environment variable that names the library to a program.
pub(crate) const VARIABLE: &str = "LD_PRELOAD";

/// Compiles a library into a folder. Every user may load it from there.
pub(crate) fn compile(folder: &Folder, name: &str, source: &str) -> Result<PathBuf> {
    let [file, library] = ["c", "so"].map(|ending| folder.path().join(format!("{name}.{ending}")));
    let doing = || format!("compile {name}.c");
    fs::write(&file, source).doing(doing)?;
    let output = Command::new(programs::find("gcc", "gcc")?)
        .args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
        .args([&library, &file])
        .stdin(Stdio::null())
        .output()
        .doing(doing)?;
    if !output.status.success() {
        return Err(Error::Refused {
            server: "gcc".to_owned(),
            request: doing(),
            answer: String::from_utf8_lossy(&output.stderr).into_owned(),
        });
    }
    for (path, mode) in [(folder.path(), 0o711), (&library, 0o755)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).doing(doing)?;
    }
    Ok(library)
}
