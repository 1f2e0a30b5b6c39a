//! Checks the sources against the rules that a program can check.
//!
//! rustfmt checks the format and clippy the lints; this file has the rules that neither knows.

use std::fs;
use std::path::{Path, PathBuf};

const LINE_MAX: usize = 100;
const FUNCTION_LINES_MAX: usize = 70;

/// The layers of the library, from the lowest to the highest. Beside each stand the parts of the
/// library that its sources may use by `crate::`. Every layer may use itself, but an engine may not
/// use another engine.
const LAYERS: &[(&str, &[&str])] = &[
    ("rule/", &["clock", "engine", "error"]),
    ("engine/", &["clock", "error", "rule"]),
    ("engines/", &["clock", "engine", "error", "rule"]),
    (
        "runtime/",
        &[
            "client",
            "clock",
            "engine",
            "error",
            "handle",
            "lease",
            "observe",
            "options",
            "primitives",
            "rule",
        ],
    ),
    ("primitives/", &["client", "clock", "engine", "error", "lease", "options", "rule", "runtime"]),
    ("fencing/", &["engines::redis", "rule"]),
    ("blocking/", &["connect", "error", "handle", "options", "rule", "runtime"]),
];

/// Redlock is two engine folders: the quorum, and the nodes of `redis`, which use it. The list of
/// schemes knows all engines.
const ENGINE_PAIRS: &[(&str, &str)] = &[("redis", "quorum")];
const KNOWS_ALL_ENGINES: &str = "engines/scheme.rs";

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

/// The parts of the library that a source uses: the segments of each path after `crate::`.
fn uses(text: &str) -> impl Iterator<Item = Vec<&str>> {
    without_tests(text).split("crate::").skip(1).map(|path| {
        let end = path.find(|c: char| !c.is_alphanumeric() && !"_:".contains(c));
        path[..end.unwrap_or(path.len())].split("::").collect()
    })
}

/// Faults for the torture test, which stand where they were.
const EVERYWHERE: &str = "seeded";

/// Whether a path is a module of the list, or inside it. `engine` is not `engines`.
fn is_within(path: &str, module: &str) -> bool {
    let rest = path.strip_prefix(module);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::") || module.ends_with("::"))
}

#[test]
fn a_layer_uses_only_the_layers_below_it() {
    let mut faults = Vec::new();
    for (layer, below) in LAYERS {
        let mut seen = 0;
        for (name, text) in files(&["rs"]) {
            let Some(module) = name.strip_prefix("crates/leasehold/src/") else { continue };
            if !module.starts_with(layer) || module.ends_with("tests.rs") {
                continue;
            }
            seen += 1;
            let types = |word: &str| word.starts_with(char::is_uppercase) || word.is_empty();
            for path in uses(&text) {
                let whole = path.join("::");
                let allowed = layer.strip_suffix('/') == Some(path[0])
                    || path[0] == EVERYWHERE
                    || below.iter().any(|below| is_within(&whole, below))
                    || (types(path[0])
                        && matches!(*layer, "runtime/" | "primitives/" | "blocking/"))
                    || (types(path[0]) && *layer == "fencing/");
                if !allowed {
                    faults.push(format!("{name}: crate::{whole}"));
                }
            }
        }
        assert!(seen > 0, "the layer {layer} moved; so must this rule");
    }
    report(faults);
}

#[test]
fn no_engine_uses_another_engine() {
    let mut faults = Vec::new();
    for (name, text) in files(&["rs"]) {
        let Some(module) = name.strip_prefix("crates/leasehold/src/") else { continue };
        let Some(inside) = module.strip_prefix("engines/") else { continue };
        if module == KNOWS_ALL_ENGINES || module.ends_with("tests.rs") {
            continue;
        }
        let own = inside.split(['/', '.']).next().unwrap_or_default();
        for path in uses(&text).filter(|path| path[0] == "engines" && path.len() > 1) {
            if path[1] != own && !ENGINE_PAIRS.contains(&(own, path[1])) {
                faults.push(format!("{name}: crate::{}", path.join("::")));
            }
        }
    }
    report(faults);
}

#[test]
fn the_pure_parts_know_no_clock_and_no_socket() {
    let mut faults = Vec::new();
    let quorum = ["ballot.rs", "clocks.rs", "node_line.rs", "tally.rs"];
    let quorum = quorum.map(|part| format!("engines/quorum/{part}"));
    let rule = ["line.rs", "claim.rs", "fence.rs", "name.rs", "deadlock.rs", "wait_notice.rs"];
    let rule = rule.map(|part| format!("rule/{part}"));
    let others = ["clock/remote.rs", "engine/kit/epochs.rs"].map(str::to_owned);
    for part in rule.iter().chain(&quorum).chain(&others) {
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
fn rust_of_every_page_is_compiled_as_a_doc_test() {
    let library = fs::read_to_string(root().join("crates/leasehold/src/lib.rs")).expect("lib.rs");
    let mut pages = 0;
    let mut faults = Vec::new();
    for (name, text) in files(&["md"]) {
        // The engines' pages show fragments for a reader's own transactions.
        if !text.contains("```rust") || name.starts_with("docs/engines/") {
            continue;
        }
        pages += 1;
        if !library.contains(&format!("\"../../../{name}\"")) {
            faults.push(format!("{name} is not in lib.rs"));
        }
    }
    report(faults);
    assert!(pages >= 5, "pages with Rust were found");
}

/// The traits of a file with their methods, as `trait name, method, whether it has a body`.
fn methods_of_traits(file: &str) -> Vec<(String, String, bool)> {
    let text = fs::read_to_string(root().join(file)).expect("a source");
    let mut methods = Vec::new();
    let mut within = None;
    for line in without_tests(&text).lines() {
        if let Some(rest) = line.strip_prefix("pub trait ") {
            within = rest.split(':').next().map(str::to_owned);
        } else if line == "}" {
            within = None;
        }
        let code = line.trim_start();
        let code = code.strip_prefix("async ").unwrap_or(code);
        if let (Some(name), Some(method)) = (&within, code.strip_prefix("fn ")) {
            let method = method.split('(').next().unwrap_or_default();
            methods.push((name.clone(), method.to_owned(), line.ends_with('{')));
        }
    }
    methods
}

#[test]
fn engine_has_eight_methods_and_no_part_has_a_default_body() {
    let waist = methods_of_traits("crates/leasehold/src/engine/mod.rs");
    let methods: Vec<&str> = waist.iter().map(|(_, method, _)| method.as_str()).collect();
    let eight = ["info", "claim", "wait", "renew", "release", "inspect", "close", "parts"];
    assert_eq!(methods, eight);
    let parts = methods_of_traits("crates/leasehold/src/engine/parts.rs");
    assert!(parts.len() >= 13, "the parts were found");
    let with_body = waist.into_iter().chain(parts).filter(|(_, _, has_body)| *has_body);
    report(with_body.map(|(name, method, _)| format!("{name}::{method} has a body")).collect());
}

#[test]
fn wrapper_of_an_engine_must_forward_every_method() {
    let deny = "#[deny(clippy::missing_trait_methods)]";
    let parts = methods_of_traits("crates/leasehold/src/engine/parts.rs");
    let mut traits: Vec<String> = parts.into_iter().map(|(name, _, _)| name).collect();
    traits.push("Engine".to_owned());
    let mut faults = Vec::new();
    let mut wrappers = 0;
    for (name, text) in files(&["rs"]) {
        // These talk to a store; all others wrap an engine.
        if name.starts_with("crates/leasehold/src/engines/") || name.ends_with("toy_engine.rs") {
            continue;
        }
        let mut before = "";
        for line in text.lines() {
            let of = |of: &String| line.starts_with(&format!("impl {of} for "));
            if traits.iter().any(of) {
                wrappers += 1;
                if before != deny {
                    faults.push(format!("{name}: {line} without {deny}"));
                }
            }
            before = line;
        }
    }
    report(faults);
    assert!(wrappers >= 20, "the wrappers were found");
}
