//! `cargo xtask api`: compares the library's public API with the list in the repository.
//!
//! The compiler lists the API as JSON. Stable Rust gives that only with a special variable. The
//! list shows each public item on a line, so a change of the API is a change of lines in a commit.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::Failure;
use crate::command::{cargo, finished, passes, target_folder, workspace_root};

/// The list, from the workspace's folder.
const LIST: &str = "crates/leasehold/public-api.txt";

/// A rustdoc that may write JSON. Only rustdoc gets the variable: cargo would build the
/// dependencies again with it.
const RUSTDOC: &str = "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n";

/// Runs the command.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let is_written = match arguments {
        [] => false,
        [only] if only == "--write" => true,
        [first, ..] => {
            let message = format!("`api` takes only `--write`, but got `{first}`");
            return Err(Failure::Message(message));
        }
    };
    let present = present().map_err(Failure::Message)?;
    let path = workspace_root().join(LIST);
    if is_written {
        return fs::write(&path, present).map_err(|error| cannot("write", &path, &error));
    }
    let recorded = fs::read_to_string(&path).map_err(|error| cannot("read", &path, &error))?;
    let changes = changes(&recorded, &present);
    if changes.is_empty() {
        println!("the public API is as `{LIST}` says");
        return Ok(());
    }
    let changes = changes.join("\n");
    let advice = "if you meant that, run `cargo xtask api --write` and commit the list";
    Err(Failure::Message(format!("the public API is not as `{LIST}` says:\n{changes}\n{advice}")))
}

fn cannot(verb: &str, path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Message(format!("cannot {verb} `{}`: {error}", path.display()))
}

/// The public items of the sources, a line each.
fn present() -> Result<String, String> {
    let json = json().map_err(|failure| match failure {
        Failure::Message(message) => message,
        Failure::Reported => "rustdoc failed".to_owned(),
    })?;
    let builder = public_api::Builder::from_rustdoc_json(json);
    let builder = builder.omit_blanket_impls(true).omit_auto_trait_impls(true);
    let api = builder.omit_auto_derived_impls(true).build();
    // The version of `public-api` in `Cargo.toml` reads the JSON of one version of Rust.
    let api = api.map_err(|error| format!("cannot read rustdoc's JSON: {error}"))?;
    Ok(api.to_string())
}

/// Makes the compiler's description of the library.
fn json() -> Result<PathBuf, Failure> {
    let folder = target_folder();
    let rustdoc = folder.join("xtask").join("rustdoc-with-json");
    let made = fs::create_dir_all(folder.join("xtask"))
        .and_then(|()| fs::write(&rustdoc, RUSTDOC))
        .and_then(|()| fs::set_permissions(&rustdoc, fs::Permissions::from_mode(0o755)));
    made.map_err(|error| cannot("write", &rustdoc, &error))?;
    let mut command = cargo(["rustdoc", "-p", "leasehold", "--lib", "--all-features", "--"]);
    command.args(["-Z", "unstable-options", "--output-format", "json", "--cap-lints", "allow"]);
    finished(passes(command.env("RUSTDOC", &rustdoc)))?;
    Ok(folder.join("doc/leasehold.json"))
}

/// The lines that are in one list and not in the other.
fn changes(recorded: &str, present: &str) -> Vec<String> {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<String>>();
    let (recorded, present) = (lines(recorded), lines(present));
    let gone = recorded.difference(&present).map(|line| format!("- {line}"));
    let new = present.difference(&recorded).map(|line| format!("+ {line}"));
    gone.chain(new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_name_what_is_gone_and_what_is_new() {
        let (before, after) = ("pub fn a()\npub fn b()\n", "pub fn b()\npub fn c()\n");
        assert_eq!(changes(before, after), ["- pub fn a()", "+ pub fn c()"]);
        assert!(changes(before, before).is_empty());
    }
}
