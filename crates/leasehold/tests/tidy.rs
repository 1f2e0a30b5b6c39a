//! Reads the sources and holds them to the rules that a program can check.
//!
//! Formatting is rustfmt's business and lints are clippy's; this has what neither knows.

use std::fs;
use std::path::{Path, PathBuf};

const LINE_MAX: usize = 100;
const FUNCTION_LINES_MAX: usize = 70;

/// What an engine may use of the library, so that moving one out is a file move. The quorum is
/// one engine and what its nodes are written against.
const ENGINE_IMPORTS: &[&str] = &[
    "address", "bell", "claim", "clock", "concern", "engine", "epochs", "error", "lane", "line",
    "name", "quorum", "socket", "tls", "wheel",
];

fn root() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("in a folder");
    crates.parent().expect("in a workspace").to_path_buf()
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder").flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                walk(&path, found);
            }
        } else {
            found.push(path);
        }
    }
}

/// All files of the project with one of these endings, and their text.
fn files(endings: &[&str]) -> Vec<(String, String)> {
    let root = root();
    let mut found = Vec::new();
    walk(&root, &mut found);
    let wanted = |path: &PathBuf| {
        let ending = path.extension().map(|ending| ending.to_string_lossy().into_owned());
        ending.is_some_and(|ending| endings.contains(&ending.as_str()))
    };
    let read = |path: PathBuf| {
        let name = path.strip_prefix(&root).expect("below the root").display().to_string();
        (name, fs::read_to_string(&path).expect("a text file"))
    };
    let files: Vec<_> = found.into_iter().filter(wanted).map(read).collect();
    assert!(!files.is_empty(), "no {endings:?} files below {}", root.display());
    files
}

fn report(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// The part of a source before its unit tests.
fn without_tests(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(text)
}

#[test]
fn every_source_file_says_what_it_is_for() {
    let headless = |(_, text): &(String, String)| !text.starts_with("//! ");
    report(files(&["rs"]).into_iter().filter(headless).map(|(name, _)| name).collect());
    let sql = files(&["sql", "lua"]).into_iter().filter(|(_, text)| !text.starts_with("-- "));
    report(sql.map(|(name, _)| name).collect());
}

#[test]
fn no_line_is_longer_than_a_hundred_columns() {
    let mut faults = Vec::new();
    for (name, text) in files(&["rs", "sql", "c", "toml"]) {
        for (number, line) in text.lines().enumerate() {
            if line.chars().count() > LINE_MAX && !name.ends_with("Cargo.toml") {
                faults.push(format!("{name}:{}", number + 1));
            }
        }
    }
    report(faults);
}

#[test]
fn no_function_is_longer_than_a_screen() {
    let mut faults = Vec::new();
    for (name, text) in files(&["rs"]) {
        let lines: Vec<&str> = text.lines().collect();
        for (start, line) in lines.iter().enumerate() {
            let code = line.trim_start();
            let indent = &line[..line.len() - code.len()];
            let words = ["fn ", "pub fn ", "pub(crate) fn ", "pub(super) fn ", "async fn "];
            let is_function = words.iter().any(|word| code.starts_with(word))
                || (code.starts_with("pub") && code.contains(" async fn "));
            let end = format!("{indent}}}");
            if is_function
                && !code.ends_with(';')
                && let Some(length) = lines[start..].iter().position(|line| *line == end)
                && length + 1 > FUNCTION_LINES_MAX
            {
                faults.push(format!("{name}:{}: {} lines", start + 1, length + 1));
            }
        }
    }
    report(faults);
}

#[test]
fn nothing_unfinished_is_left() {
    let markers = [
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("FIX", "ME"),
        concat!("X", "XX"),
    ];
    let leftovers = [concat!("db", "g!("), concat!("#[ig", "nore")];
    let mut faults = Vec::new();
    for (name, text) in files(&["rs", "sql", "lua", "c", "md", "toml"]) {
        for (number, line) in text.lines().enumerate() {
            if markers.iter().chain(&leftovers).any(|marker| line.contains(marker)) {
                faults.push(format!("{name}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    report(faults);
}

#[test]
fn no_path_of_one_machine_is_in_the_sources() {
    let paths = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/home/", "user")];
    let mut faults = Vec::new();
    for (name, text) in files(&["rs", "sql", "lua", "c", "md", "toml"]) {
        if paths.iter().any(|path| text.contains(path)) {
            faults.push(name);
        }
    }
    report(faults);
}

#[test]
fn no_statement_takes_the_time_of_its_transaction() {
    let faults = files(&["sql"]).into_iter().flat_map(|(name, text)| {
        let words = ["now()", "current_timestamp", "transaction_timestamp", "localtimestamp"];
        let lower = text.to_lowercase();
        let used = words.into_iter().filter(|word| {
            let mut code = lower.lines().map(|line| line.split("--").next().unwrap_or_default());
            code.any(|code| code.contains(word))
        });
        used.map(|word| format!("{name}: {word}")).collect::<Vec<_>>()
    });
    report(faults.collect());
}

#[test]
fn the_library_does_not_unwrap() {
    let mut faults = Vec::new();
    for (name, text) in files(&["rs"]) {
        if !name.starts_with("crates/leasehold/src/") || name.ends_with("/tests.rs") {
            continue;
        }
        for (number, line) in without_tests(&text).lines().enumerate() {
            if line.contains(".unwrap()") && !line.trim_start().starts_with("//") {
                faults.push(format!("{name}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    report(faults);
}

#[test]
fn engines_use_only_the_narrow_waist() {
    let engines = ["etcd/", "memory.rs", "postgres/", "quorum/", "redis/", "sqlite/", "zookeeper/"];
    let mut faults = Vec::new();
    let mut seen = 0;
    for (name, text) in files(&["rs"]) {
        let Some(module) = name.strip_prefix("crates/leasehold/src/") else { continue };
        if !engines.iter().any(|engine| module.starts_with(engine)) || module.ends_with("tests.rs")
        {
            continue;
        }
        seen += 1;
        for path in without_tests(&text).split("crate::").skip(1) {
            let word = path.split(|c: char| !c.is_alphanumeric() && c != '_').next();
            let own = module.split(['/', '.']).next();
            if word != own && !word.is_some_and(|word| ENGINE_IMPORTS.contains(&word)) {
                faults.push(format!("{name}: crate::{}", word.unwrap_or_default()));
            }
        }
    }
    assert!(seen >= engines.len(), "the engines moved; so must this rule");
    report(faults);
}

#[test]
fn the_pure_parts_know_no_clock_and_no_socket() {
    let mut faults = Vec::new();
    let quorum = ["ballot.rs", "cause.rs", "clocks.rs", "node_line.rs", "tally.rs"];
    let quorum = quorum.map(|part| format!("quorum/{part}"));
    let line = ["line.rs", "claim.rs", "clock/remote.rs", "name.rs", "deadlock.rs", "notice.rs"];
    let line = line.into_iter().chain(["epochs.rs"]).map(str::to_owned).collect::<Vec<_>>();
    for part in line.iter().chain(&quorum) {
        let path = root().join("crates/leasehold/src").join(part);
        let text = fs::read_to_string(path).expect("a pure part");
        for word in ["tokio", "Instant::", "SystemTime", "std::net", "std::fs", ".now()"] {
            if without_tests(&text).contains(word) {
                faults.push(format!("{part}: {word}"));
            }
        }
    }
    report(faults);
}

#[test]
fn every_conformance_case_is_on_the_list() {
    let listed: Vec<&str> =
        leasehold_testkit::conformance::CASES.iter().map(|case| case.name).collect();
    assert!(listed.len() >= 60, "only {} cases", listed.len());
    let mut faults = Vec::new();
    let mut written = 0;
    for (name, text) in files(&["rs"]) {
        if !name.starts_with("crates/leasehold-testkit/src/conformance/") {
            continue;
        }
        for function in text.split("\nasync fn ").skip(1) {
            let signature = function.split('{').next().unwrap_or_default();
            if !signature.contains("Arc<dyn Harness>") || !signature.contains("-> Outcome") {
                continue;
            }
            let case = signature.split('(').next().unwrap_or_default();
            written += 1;
            if !listed.contains(&case) {
                faults.push(format!("{name}: {case} is in no list"));
            }
        }
    }
    report(faults);
    assert_eq!(written, listed.len(), "as many cases written as listed");
}

#[test]
fn readme_examples_are_compiled_as_doc_tests() {
    let library = fs::read_to_string(root().join("crates/leasehold/src/lib.rs")).expect("lib.rs");
    assert!(library.contains("include_str!(\"../../../README.md\")"));
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    assert!(readme.contains("```rust"), "the README shows the library");
}

#[test]
fn every_engine_has_its_page() {
    for engine in ["etcd", "memory", "postgres", "redis", "redlock", "sqlite"] {
        let page = root().join("docs/engines").join(engine).with_extension("md");
        assert!(page.is_file(), "{}", page.display());
    }
}
