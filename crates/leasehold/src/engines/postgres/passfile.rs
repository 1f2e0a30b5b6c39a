//! The password file: `HOST:PORT:DATABASE:USER:PASSWORD`, a line for each, the first that fits.
//!
//! The file is the one that all PostgreSQL clients read: `PGPASSFILE`, else `~/.pgpass`. Like they
//! do, we read it only if nobody else may.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::engine::kit::address::{Host, bad};
use crate::error::Result;

/// A file longer than this is something else.
const BYTES_MAX: u64 = 1024 * 1024;

/// Finds the password for a server. A file that is not named in the URL may be missing.
pub(super) fn find(
    named: Option<PathBuf>,
    hosts: &[Host],
    database: &str,
    user: &str,
) -> Result<Option<String>> {
    let usual = || {
        let file = std::env::var_os("PGPASSFILE").map(PathBuf::from);
        file.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".pgpass")))
    };
    let text = match (&named, usual()) {
        (Some(path), _) => read(path)
            .map_err(|error| bad("passfile", &format!("names `{}`: {error}", path.display())))?,
        (None, Some(path)) => match read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the password file is not used");
                return Ok(None);
            }
        },
        (None, None) => return Ok(None),
    };
    // One password is kept for all servers of a URL; they are one cluster.
    Ok(hosts.iter().find_map(|host| password(&text, host, database, user)))
}

fn read(path: &Path) -> io::Result<String> {
    let about = path.metadata()?;
    if about.mode() & 0o077 != 0 {
        return Err(io::Error::other("others may read it; `chmod 600` it"));
    }
    if about.len() > BYTES_MAX {
        return Err(io::Error::other("it is too long for a password file"));
    }
    std::fs::read_to_string(path)
}

fn password(text: &str, host: &Host, database: &str, user: &str) -> Option<String> {
    let server = if host.name.starts_with('/') { "localhost" } else { &host.name };
    let port = host.port.to_string();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(fields).find_map(|fields| {
        let [on, at, of, by, password] = fields.try_into().ok()?;
        let fits = |pattern: &str, value: &str| pattern == "*" || pattern == value;
        let mine = fits(&on, server) && fits(&at, &port) && fits(&of, database) && fits(&by, user);
        mine.then_some(password)
    })
}

/// Five fields; a backslash takes the meaning from what follows it.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => fields.last_mut().expect("never empty").extend(letters.next()),
            ':' if fields.len() < 5 => fields.push(String::new()),
            letter => fields.last_mut().expect("never empty").push(letter),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_first_line_that_fits_counts() {
        let text = "# note\nother:5432:d:u:no\nh:5432:d:u:a\\:b\\\\c:d\n*:*:*:*:any\n";
        let host = |name: &str| Host { name: name.into(), port: 5432 };
        assert_eq!(password(text, &host("h"), "d", "u").as_deref(), Some("a:b\\c:d"));
        assert_eq!(password(text, &host("x"), "d", "u").as_deref(), Some("any"));
        let socket = "localhost:5432:d:u:here\n";
        assert_eq!(password(socket, &host("/run/pg"), "d", "u").as_deref(), Some("here"));
        assert_eq!(password(socket, &host("h"), "d", "u"), None);
    }

    #[test]
    fn a_named_file_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pass");
        std::fs::write(&path, "*:*:*:*:secret").expect("written");
        let hosts = [Host { name: "h".into(), port: 1 }];
        let find = || find(Some(path.clone()), &hosts, "d", "u");
        let mode = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode));
        mode(0o644).expect("set");
        let error = find().expect_err("refused").to_string();
        assert!(error.contains("chmod 600") && !error.contains("secret"), "{error}");
        mode(0o600).expect("set");
        assert_eq!(find().expect("read").as_deref(), Some("secret"));
    }
}
