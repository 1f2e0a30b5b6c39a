//! Running other programs: cargo, apt-get and examples, with their output passed on live.
//!
//! This module does not know what the programs are for; the commands decide that.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Failure, family};

/// How much of a program's output is passed on at once. Any size works; this one fits a pipe's
/// page.
const CHUNK_BYTES: usize = 4096;

/// The folder with the workspace's `Cargo.toml`.
///
/// Cargo tells a program it runs where that program's own package is; `xtask` lies directly in
/// the workspace.
pub(crate) fn workspace_root() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR")
        .map(PathBuf::from)
        .and_then(|package| package.parent().map(Path::to_path_buf))
        .unwrap_or_else(|| PathBuf::from("."))
}

/// The folder that cargo builds into.
pub(crate) fn target_folder() -> PathBuf {
    let chosen = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    workspace_root().join(chosen.unwrap_or_else(|| PathBuf::from("target")))
}

/// The cargo that runs this program, in the workspace's folder.
pub(crate) fn cargo<I, S>(arguments: I) -> Command
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(workspace_root());
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_about_this_package(name)) {
        command.env_remove(name);
    }
    command
}

/// Whether a variable describes this program's own package.
///
/// Cargo sets such variables, and build scripts read them. With those of `xtask`, cargo would
/// rebuild packages that a plain `cargo test` built.
fn is_about_this_package(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

/// Runs a program with its output untouched; the result says whether it ended with status 0.
pub(crate) fn passes(command: &mut Command) -> io::Result<bool> {
    let mut child = family::spawn(command.stdin(Stdio::null()))?;
    let status = child.wait()?;
    family::forget(child.id());
    Ok(status.success())
}

/// The result of a program that has reported its failure itself.
pub(crate) fn finished(passed: io::Result<bool>) -> Result<(), Failure> {
    match passed {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::Reported),
        Err(error) => Err(Failure::Message(format!("cannot run cargo: {error}"))),
    }
}

/// Runs a program, passes its standard output on as it comes, and shows each line to `line`.
pub(crate) fn passes_with_lines(command: &mut Command, line: impl FnMut(&str)) -> io::Result<bool> {
    let mut child = family::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    let output = child.stdout.take().expect("standard output was piped above");
    let passed_on = pass_on(output, io::stdout(), line);
    // Collected also after an error: with its pipe closed the program ends.
    let status = child.wait()?;
    family::forget(child.id());
    passed_on?;
    Ok(status.success())
}

/// Copies chunks before their lines are complete: a test's name appears when the test starts, not
/// when it ends.
fn pass_on(mut from: impl Read, mut to: impl Write, mut line: impl FnMut(&str)) -> io::Result<()> {
    let mut pending = Vec::new();
    let mut chunk = [0; CHUNK_BYTES];
    loop {
        let count = match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(&chunk[..count])?;
        to.flush()?;
        pending.extend_from_slice(&chunk[..count]);
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let full: Vec<u8> = pending.drain(..=end).collect();
            line(String::from_utf8_lossy(&full).trim_end());
        }
    }
    if !pending.is_empty() {
        line(String::from_utf8_lossy(&pending).trim_end());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_passed_on_and_lines_are_seen_whole() {
        let (mut copy, mut lines) = (Vec::new(), Vec::new());
        let output = io::Cursor::new("one\ntw").chain(io::Cursor::new("o\nlast"));
        pass_on(output, &mut copy, |line| lines.push(line.to_owned())).unwrap();
        assert_eq!(copy, b"one\ntwo\nlast");
        assert_eq!(lines, ["one", "two", "last"]);
    }

    #[test]
    fn status_decides_whether_a_program_passes() {
        assert!(passes(&mut Command::new("true")).unwrap());
        assert!(!passes(&mut Command::new("false")).unwrap());
        assert!(!passes_with_lines(&mut Command::new("false"), |_| ()).unwrap());
    }
}
