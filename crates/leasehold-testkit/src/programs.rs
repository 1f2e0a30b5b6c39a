//! Finding the programs of the servers, and the user that PostgreSQL runs as.
//!
//! Looks in the search path and where Debian puts programs that are not on it. `cargo xtask setup`
//! installs what is missing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Doing, Error, Result};

/// Where Debian keeps the programs of PostgreSQL, a folder for each version.
const POSTGRES_FOLDER: &str = "/usr/lib/postgresql";

/// Finds a program; the message names its Debian package when it is missing.
pub(crate) fn find(program: &str, package: &'static str) -> Result<PathBuf> {
    folders()
        .into_iter()
        .map(|folder| folder.join(program))
        .find(|path| is_program(path))
        .ok_or_else(|| Error::MissingProgram { program: program.to_owned(), package })
}

/// Makes sure that a file at a fixed place exists.
pub(crate) fn require(file: &'static str, package: &'static str) -> Result<&'static str> {
    if Path::new(file).is_file() {
        return Ok(file);
    }
    Err(Error::MissingProgram { program: file.to_owned(), package })
}

/// The search path, folders it may lack, then PostgreSQL's versions with the newest first.
fn folders() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/local/bin", "/usr/bin", "/usr/sbin"].map(PathBuf::from));
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir(POSTGRES_FOLDER)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .collect();
    versions.sort_unstable_by(|left, right| right.cmp(left));
    folders.extend(versions.into_iter().map(|(_, path)| path.join("bin")));
    folders
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// A user and group of the system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl User {
    /// The user to become for a server that refuses root; `None` when this process is not root's.
    pub(crate) fn instead_of_root(name: &str, package: &'static str) -> Result<Option<User>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let table = fs::read_to_string("/etc/passwd").doing(|| "read /etc/passwd".to_owned())?;
        let missing = || Error::MissingProgram { program: format!("user {name}"), package };
        User::from_table(&table, name).map(Some).ok_or_else(missing)
    }

    fn from_table(table: &str, name: &str) -> Option<User> {
        table.lines().find_map(|line| {
            let mut fields = line.split(':');
            let found = fields.next()? == name;
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            found.then_some(User { uid, gid })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_names_package_and_command() {
        let error = find("no-such-server", "no-such-package").unwrap_err().to_string();
        assert_eq!(
            error,
            "`no-such-server` was not found; it is in the Debian package `no-such-package`, \
             which `cargo xtask setup` installs"
        );
    }

    #[test]
    fn program_on_the_search_path_is_found() {
        assert!(find("sh", "dash").unwrap().is_absolute());
    }

    #[test]
    fn user_is_read_from_the_table() {
        let table = "root:x:0:0:root:/:/bin/sh\npostgres:x:105:111:,,,:/var/lib/p:/bin/bash\n";
        let user = User::from_table(table, "postgres").unwrap();
        assert_eq!((user.uid, user.gid), (105, 111));
        assert!(User::from_table(table, "nobody").is_none());
    }
}
