//! `cargo xtask measure`: counts what should become less, or must not.
//!
//! Reads the files of the working tree, or with `--at REV` those of a commit, and builds nothing.
//! The limits of these numbers are left to the tests `tidy` and `prose` of the library.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Map, Value, json};

use crate::Failure;
use crate::command::{target_folder, workspace_root};

const LIBRARY: &str = "crates/leasehold/src/";

/// The folders of engines, below `engines/` or, in older commits, below the library's `src`.
const ENGINES: [&str; 7] =
    ["etcd", "postgres/advisory", "postgres/table", "quorum", "redis", "sqlite", "zookeeper"];

/// The files that `client.mutex("x").lock()` runs through before an engine, in order. Found by
/// reading; a file that was renamed is reported, so that the list follows.
const WALK: [&str; 12] = [
    "client.rs",
    "acquire.rs",
    "name.rs",
    "mutex.rs",
    "claim.rs",
    "claim_state.rs",
    "scope.rs",
    "keeper.rs",
    "registry.rs",
    "thread_shard.rs",
    "fence_watermark.rs",
    "retry.rs",
];

/// The text of each file, by its path from the root.
type Files = BTreeMap<String, String>;

/// Runs the command.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let mut revision = None;
    let mut as_json = false;
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--json" => as_json = true,
            "--at" => revision = Some(words.next().ok_or_else(usage)?.as_str()),
            _ => return Err(usage()),
        }
    }
    let files = match revision {
        None => read_below(&workspace_root())?,
        Some(revision) => read_commit(revision)?,
    };
    let counts = counts(&files);
    if as_json {
        println!("{}", Value::Object(counts));
        return Ok(());
    }
    for (name, value) in &counts {
        println!("{name:<34} {}", value.to_string().replace('"', ""));
    }
    Ok(())
}

fn usage() -> Failure {
    Failure::Message("`measure` takes `--at REV` and `--json`, and nothing else".to_owned())
}

/// The files of a commit, by way of a folder that is removed again.
fn read_commit(revision: &str) -> Result<Files, Failure> {
    let folder = target_folder().join(format!("xtask/measure-{}", std::process::id()));
    let files = unpack(revision, &folder).and_then(|()| read_below(&folder));
    // A folder that cannot be removed only takes room.
    let _ = fs::remove_dir_all(&folder);
    files
}

fn unpack(revision: &str, folder: &Path) -> Result<(), Failure> {
    let failed = |what: &str| Failure::Message(format!("cannot read the commit: {what} failed"));
    fs::create_dir_all(folder).map_err(|error| Failure::Message(error.to_string()))?;
    let mut archive = Command::new("git")
        .current_dir(workspace_root())
        .args(["archive", "--format=tar", revision])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|_| failed("git"))?;
    let packed = archive.stdout.take().ok_or_else(|| failed("git"))?;
    let tar = Command::new("tar").arg("-x").arg("-C").arg(folder).stdin(packed).status();
    let archived = archive.wait();
    let is_good = |status: std::io::Result<std::process::ExitStatus>| {
        status.is_ok_and(|status| status.success())
    };
    if !is_good(archived) {
        return Err(failed("git archive"));
    }
    if is_good(tar) { Ok(()) } else { Err(failed("tar")) }
}

fn read_below(root: &Path) -> Result<Files, Failure> {
    let mut files = Files::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).map_err(|error| {
            Failure::Message(format!("cannot read `{}`: {error}", folder.display()))
        })?;
        for entry in entries.flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && name != "node_modules" && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if is_read(&path) {
                let text = fs::read_to_string(&path).unwrap_or_default();
                let short = path.strip_prefix(root).unwrap_or(&path);
                files.insert(short.to_string_lossy().into_owned(), text);
            }
        }
    }
    Ok(files)
}

fn is_read(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    matches!(ending, Some("rs" | "lua" | "sql" | "md" | "txt"))
}

fn counts(files: &Files) -> Map<String, Value> {
    let mut counts = Map::new();
    let mut put = |name: &str, value: Value| counts.insert(name.to_owned(), value);
    let (methods, bodies) = engine_methods(files);
    put("engine: methods", json!(methods));
    put("engine: methods with a body", json!(bodies));
    put("engines: lines that refuse", json!(lines_of_engines(files, refuses)));
    put("engines: lines", json!(lines_of_engines(files, |_| true)));
    let sets: BTreeSet<_> = ENGINES.iter().filter_map(|engine| file_names(files, engine)).collect();
    put("engines: sets of file names", json!(sets.len()));
    let (found, missing) = walk(files);
    put("lock(): files before the engine", json!(found));
    put("lock(): files not found", json!(missing));
    let whoever = |is_wanted: fn(&str) -> bool| {
        let is_source = |path: &str| is_wanted(path) && !path.ends_with(".txt");
        let wanted = files.iter().filter(|(path, _)| is_source(path));
        wanted.flat_map(|(_, text)| text.lines()).filter(|line| has_whoever(line)).count()
    };
    put("`whoever`: lines", json!(whoever(|_| true)));
    put("`whoever`: lines outside engines", json!(whoever(|path| !is_engine(path))));
    let pages = || files.iter().filter(|(path, _)| is_page(path));
    let all: usize = pages().map(|(_, text)| text.split_whitespace().count()).sum();
    put("README and docs: words by wc", json!(all));
    let read: usize =
        pages().filter(|(path, _)| is_counted(path)).map(|(_, t)| read_words(t)).sum();
    put("README and docs: words read", json!(read));
    for page in ["ARCHITECTURE.md", "README.md"] {
        let lines = files.get(page).map(|text| text.lines().count());
        put(&format!("{page}: lines"), json!(lines));
    }
    let rust = || files.iter().filter(|(path, _)| path.ends_with(".rs"));
    put("tests", json!(rust().map(|(_, text)| tests(text)).sum::<usize>()));
    let conformance = |path: &str| path.starts_with("crates/leasehold-testkit/src/conformance");
    let cases = rust().filter(|(path, _)| conformance(path)).map(|(_, text)| cases(text));
    put("conformance cases", json!(cases.sum::<usize>()));
    counts
}

/// The methods of the trait `Engine`, and how many of them have a body.
fn engine_methods(files: &Files) -> (usize, usize) {
    let paths = ["engine/mod.rs", "engine.rs"].map(|path| format!("{LIBRARY}{path}"));
    let text = paths.iter().find_map(|path| files.get(path)).map_or("", String::as_str);
    let after = text.split_once("\npub trait Engine").map_or("", |(_, after)| after);
    let body = after.split("\n}\n").next().unwrap_or("");
    let mut methods = 0;
    let mut bodies = 0;
    let mut in_signature = false;
    for line in body.lines().map(str::trim) {
        let begins = line.starts_with("fn ") || line.starts_with("async fn ");
        methods += usize::from(begins);
        in_signature |= begins;
        if in_signature && line.ends_with([';', '{']) {
            bodies += usize::from(line.ends_with('{'));
            in_signature = false;
        } else if in_signature && line.ends_with('}') {
            bodies += 1;
            in_signature = false;
        }
    }
    (methods, bodies)
}

/// The part of a path inside its engine's folder.
fn inside<'a>(path: &'a str, engine: &str) -> Option<&'a str> {
    let path = path.strip_prefix(LIBRARY)?;
    path.strip_prefix("engines/").unwrap_or(path).strip_prefix(engine)?.strip_prefix('/')
}

/// Whether a path is in a folder of engines.
fn is_engine(path: &str) -> bool {
    ENGINES.iter().chain(&["postgres"]).any(|engine| inside(path, engine).is_some())
}

/// The lines of engines, without those of tests, that something holds of.
fn lines_of_engines(files: &Files, holds: fn(&str) -> bool) -> usize {
    let is_code = |path: &str| is_engine(path) && !path.ends_with("tests.rs");
    let texts = files.iter().filter(|(path, _)| is_code(path)).map(|(_, text)| text);
    let code = texts.map(|text| text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(text));
    code.flat_map(str::lines).filter(|line| holds(line)).count()
}

fn refuses(line: &str) -> bool {
    let line = line.trim_start();
    !line.starts_with("//") && (line.contains("Unsupported") || line.contains("unsupported("))
}

fn file_names<'a>(files: &'a Files, engine: &str) -> Option<BTreeSet<&'a str>> {
    let names = files.keys().filter_map(|path| inside(path, engine));
    let names: BTreeSet<&str> = names.filter(|name| !name.contains('/')).collect();
    (!names.is_empty()).then_some(names)
}

/// How many files of the way are there, and the names of the others.
fn walk(files: &Files) -> (usize, Vec<&'static str>) {
    let names: BTreeSet<&str> = files
        .keys()
        .filter(|path| path.starts_with(LIBRARY) && !is_engine(path))
        .filter_map(|path| path.rsplit('/').next())
        .collect();
    let missing: Vec<&str> = WALK.into_iter().filter(|name| !names.contains(name)).collect();
    (WALK.len() - missing.len(), missing)
}

fn has_whoever(line: &str) -> bool {
    line.contains("whoever") || line.contains("Whoever")
}

fn is_page(path: &str) -> bool {
    path == "README.md"
        || path.starts_with("docs/") && (path.ends_with(".md") || path.ends_with("llms.txt"))
}

/// The pages whose words have a limit, as the test `prose` counts them.
fn is_counted(path: &str) -> bool {
    !path.starts_with("docs/decisions/") && path != "docs/faults.md"
}

/// The words that a reader reads: no code blocks, headings, comments and generated parts.
fn read_words(text: &str) -> usize {
    let (mut in_code, mut in_generated) = (false, false);
    let mut count = 0;
    for line in text.lines().map(str::trim) {
        in_code ^= line.starts_with("```");
        in_generated =
            (in_generated || line.starts_with("<!-- begin ")) && !line.starts_with("<!-- end ");
        if !in_code && !in_generated && !line.starts_with(['#', '<', '=']) {
            let is_word = |word: &&str| word.contains(char::is_alphanumeric);
            count += line.split_whitespace().filter(is_word).count();
        }
    }
    count
}

fn tests(text: &str) -> usize {
    let is_test = |line: &&str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    text.lines().map(str::trim).filter(is_test).count()
}

fn cases(text: &str) -> usize {
    let signatures = text.split("\nasync fn ").skip(1).filter_map(|rest| rest.split('{').next());
    let is_case = |signature: &&str| {
        signature.contains("Arc<dyn Harness>") && signature.contains("-> Outcome")
    };
    signatures.filter(is_case).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(texts: &[(&str, &str)]) -> Files {
        texts.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect()
    }

    #[test]
    fn methods_and_bodies_are_counted() {
        let text = "
pub trait Engine: Send {
    fn info(&self) -> Info;
    async fn wait(
        &self,
    ) -> Wake;
    fn tally(&self) {
        one();
    }
}
";
        let files = files(&[("crates/leasehold/src/engine/mod.rs", text)]);
        assert_eq!(engine_methods(&files), (3, 1));
    }

    #[test]
    fn engines_are_found_in_both_places() {
        let new = "crates/leasehold/src/engines/postgres/table/mod.rs";
        let old = "crates/leasehold/src/etcd/mod.rs";
        assert!(is_engine(new) && is_engine(old));
        assert!(!is_engine("crates/leasehold/src/engine/mod.rs"));
        let code = "// Unsupported\nunsupported()\n\n#[cfg(test)]\nmod tests {\nUnsupported\n}\n";
        let files = files(&[(new, code), (old, "a\nb\n")]);
        assert_eq!(lines_of_engines(&files, refuses), 1);
        assert_eq!(lines_of_engines(&files, |_| true), 4);
        assert_eq!(file_names(&files, "etcd"), Some(BTreeSet::from(["mod.rs"])));
    }

    #[test]
    fn words_are_those_that_a_reader_reads() {
        let page = "# Title\n\nTwo words –\n```sh\nnot these\n```\n<!-- begin x -->\nnor these\n\
                    <!-- end x -->\n| one | `two` |\n";
        assert_eq!(read_words(page), 4);
    }

    #[test]
    fn every_count_of_this_tree_is_above_nothing() {
        let counts = counts(&read_below(&workspace_root()).expect("the sources"));
        for name in ["engine: methods", "engines: lines", "README and docs: words read", "tests"] {
            assert!(counts[name].as_u64() > Some(0), "{name}: {counts:?}");
        }
    }
}
