//! A run of the command that must find nothing wrong.

use std::process::Command;

use serde_json::Value;

/// Runs the command with these words, and reads its line.
///
/// A report may be cut in the middle, so a failure says what was found in its first line and in its
/// last one. Between them are the histories of the attempts.
pub fn good_round(words: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_leasehold-torture"))
        .args(words)
        .arg("--json")
        .output()
        .expect("the command starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let line: Value = serde_json::from_str(said.trim()).unwrap_or_default();
    let found = found(&line, &errors);
    assert!(output.status.success(), "{found}\n{}\n{errors}\n{found}", said.trim());
    line
}

/// The checks that found something, with the first sentence about it.
fn found(line: &Value, errors: &str) -> String {
    let engine = line["engine"].as_str().unwrap_or("the command failed");
    let first = errors.lines().next().unwrap_or_default();
    format!("{engine}: {}: {first}", line["violations"])
}
