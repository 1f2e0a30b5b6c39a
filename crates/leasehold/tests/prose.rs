//! Reads the pages, the texts of the program and the comments of the sources, and holds them to the
//! rules of words that a program can check.
//!
//! Whether a page is true is left to others: `readme.rs` of the command runs its blocks.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "prose/sources.rs"]
mod sources;

/// The folders whose comments and texts are checked, without those of engines.
const SOURCES: [&str; 6] = [
    "crates/leasehold-bench/src",
    "crates/leasehold-cli/src",
    "crates/leasehold-testkit/src",
    "crates/leasehold-torture/src",
    "crates/leasehold/src",
    "xtask/src",
];

/// Words in a sentence. The rule for writers is 25; the rest is for names and numbers.
const SENTENCE_WORDS_MAX: usize = 30;

/// Words of the README and of `docs`, without decisions, generated parts and code blocks.
const DOCS_WORDS_MAX: usize = 25_000;

/// Words of an engine's page, counted in the same way.
const ENGINE_WORDS_MAX: usize = 1_100;

const README_LINES_MAX: usize = 250;
const ARCHITECTURE_LINES_MAX: usize = 150;

/// Made by `cargo xtask docs` from its source, which is checked like a page.
const GENERATED: &str = "docs/faults.md";

/// Words that hide the actor, or that have a plainer one.
const DENIED: &[&str] = &[
    "whoever",
    "whomever",
    "by whom",
    "anew",
    "he",
    "his",
    "him",
    "himself",
    "unless told",
    "unless said",
    "is told",
    "are told",
    "was told",
    "were told",
    "be told",
    "on its way",
    "on their way",
    "on the way",
    "any stretch",
    "belfry",
    "mooring",
    "voyage",
    "scribe",
    "mourning",
];

/// No sentence begins with these, if it is no question: they stand for an actor without a name.
const DENIED_BEGINNINGS: &[&str] = &["Who ", "What "];

/// A shorter text is a title, such as a link's: "What breaks the promises".
const TITLE_WORDS_MAX: usize = 8;

/// Every engine: its page, and its column in the table of promises.
const ENGINES: [(&str, &str); 8] = [
    ("memory", "memory"),
    ("sqlite", "SQLite"),
    ("redis", "Redis"),
    ("redlock", "Redlock"),
    ("postgres", "PostgreSQL table"),
    ("postgres-advisory", "advisory locks"),
    ("etcd", "etcd"),
    ("zookeeper", "ZooKeeper"),
];

/// A paragraph, an item of a list, or the row of a table.
#[derive(Debug)]
struct Piece {
    line: usize,
    is_row: bool,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// Every page, by its path from the root.
fn pages() -> BTreeSet<String> {
    let mut pages = BTreeSet::from(["docs/llms.txt".to_owned(), "docs/faults.txt".to_owned()]);
    find_pages(&root(), "", &mut pages);
    pages.remove(GENERATED);
    assert!(pages.len() > 50, "only {} pages", pages.len());
    pages
}

fn find_pages(folder: &Path, prefix: &str, pages: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a readable folder").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        if path.is_dir() {
            let is_ours = name != "target" && (!name.starts_with('.') || name == ".github");
            if is_ours {
                find_pages(&path, &format!("{prefix}{name}/"), pages);
            }
        } else if name.ends_with(".md") {
            pages.insert(format!("{prefix}{name}"));
        }
    }
}

/// What a reader reads: no code blocks, headings, comments and generated parts.
fn pieces(text: &str) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut in_code = false;
    let mut in_generated = false;
    let mut goes_on = false;
    for (index, raw) in text.lines().enumerate() {
        let line = raw.trim();
        if line.starts_with("```") {
            in_code = !in_code;
            goes_on = false;
            continue;
        }
        in_generated =
            (in_generated || line.starts_with("<!-- begin ")) && !line.starts_with("<!-- end ");
        let is_text =
            !line.is_empty() && !line.starts_with(['#', '<', '=']) && !line.starts_with("//");
        if in_code || in_generated || !is_text {
            goes_on = false;
            continue;
        }
        let is_row = line.starts_with('|');
        let item = item_of(line);
        let text = item.unwrap_or(line).trim_start_matches("> ");
        match pieces.last_mut() {
            Some(last) if goes_on && !is_row && item.is_none() => {
                last.text.push(' ');
                last.text.push_str(text);
            }
            _ => pieces.push(Piece { line: index + 1, is_row, text: text.to_owned() }),
        }
        goes_on = !is_row;
    }
    pieces
}

/// The text of a list's item: `- text`, `* text` or `1. text`.
fn item_of(line: &str) -> Option<&str> {
    let (mark, text) = line.split_once(' ')?;
    let number = mark.strip_suffix('.').is_some_and(|digits| digits.parse::<u32>().is_ok());
    (number || matches!(mark, "-" | "*")).then_some(text)
}

/// The text as it is read aloud: a code span is one word, a link is its text, no emphasis.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for (index, part) in text.split('`').enumerate() {
        plain.push_str(if index % 2 == 0 { part } else { "CODE" });
    }
    let mut read = String::new();
    let mut rest = plain.as_str();
    while let Some((before, after)) = rest.split_once("](") {
        read.push_str(before);
        rest = after.split_once(')').map_or("", |(_target, rest)| rest);
    }
    read.push_str(rest);
    read.replace(['[', ']', '*'], "")
}

fn sentences(text: &str) -> Vec<String> {
    let mut sentences = vec![String::new()];
    for word in text.split_whitespace() {
        let last = sentences.last_mut().expect("there is one");
        last.push_str(word);
        last.push(' ');
        if word.trim_end_matches(['"', ')', '»']).ends_with(['.', '!', '?']) {
            sentences.push(String::new());
        }
    }
    sentences
}

fn words(text: &str) -> usize {
    text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

/// Whether the words stand in a text as such: `he` does not stand in `the`.
fn has(text: &str, words: &str) -> bool {
    let is_inside = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    text.match_indices(words).any(|(at, _)| {
        !is_inside(text[..at].chars().next_back())
            && !is_inside(text[at + words.len()..].chars().next())
    })
}

fn report(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// What hides the actor in a paragraph, each with the sentence.
fn hidden_actors(text: &str, is_row: bool) -> Vec<String> {
    let lower = text.to_lowercase();
    let denied = DENIED.iter().filter(|word| has(&lower, word));
    let mut faults: Vec<String> = denied.map(|word| format!("`{word}` in: {text}")).collect();
    for sentence in sentences(text) {
        let begins = DENIED_BEGINNINGS.iter().any(|beginning| sentence.starts_with(beginning));
        let is_question = sentence.trim_end().ends_with('?');
        if begins && !is_row && !is_question && words(&sentence) > TITLE_WORDS_MAX {
            faults.push(format!("the actor has no name: {sentence}"));
        }
        if has(&sentence.to_lowercase(), "unless") && has(&sentence, "otherwise") {
            faults.push(format!("say `by default`: {sentence}"));
        }
    }
    faults
}

/// The sentences that are too long to be read once, each with its number of words.
fn long_sentences(text: &str) -> Vec<String> {
    let counted = sentences(text).into_iter().map(|sentence| (words(&sentence), sentence));
    let long = counted.filter(|(count, _)| *count > SENTENCE_WORDS_MAX);
    long.map(|(count, sentence)| format!("{count} words: {sentence}")).collect()
}

#[test]
fn no_page_hides_the_actor() {
    let mut faults = Vec::new();
    for page in pages() {
        for piece in pieces(&read(&page)) {
            let found = hidden_actors(&plain(&piece.text), piece.is_row);
            faults.extend(found.iter().map(|fault| format!("{page}:{}: {fault}", piece.line)));
        }
    }
    report(&faults);
}

#[test]
fn no_sentence_is_longer_than_thirty_words() {
    let mut faults = Vec::new();
    let mut seen = 0;
    // The outcomes of faults are cells of a table.
    for page in pages().iter().filter(|page| !page.ends_with("faults.txt")) {
        for piece in pieces(&read(page)).iter().filter(|piece| !piece.is_row) {
            let text = plain(&piece.text);
            seen += sentences(&text).len();
            let long = long_sentences(&text);
            faults.extend(long.iter().map(|fault| format!("{page}:{}: {fault}", piece.line)));
        }
    }
    report(&faults);
    assert!(seen > 2_000, "only {seen} sentences were read");
}

/// The sources of the command and of the library, by their path from the root. The folders of
/// engines are left out: they come later.
fn sources() -> Vec<String> {
    let mut found = Vec::new();
    let mut folders: Vec<String> = SOURCES.map(str::to_owned).into();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).expect("a folder of sources").flatten() {
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            let is_engine = folder.ends_with("src/engines");
            if entry.path().is_dir() && !is_engine {
                folders.push(path);
            } else if path.ends_with(".rs") && !path.ends_with("tests.rs") {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 90, "only {} sources", found.len());
    found.sort();
    found
}

/// What is wrong with a comment or a text of a source. Indented lines are examples and lists.
fn faults_of(text: &sources::Text) -> Vec<String> {
    let mut faults = Vec::new();
    let without_examples: Vec<&str> = text.text.lines().map(indented_as_empty).collect();
    for piece in pieces(&without_examples.join("\n")) {
        let plain = plain(&piece.text);
        faults.extend(hidden_actors(&plain, piece.is_row));
        faults.extend(long_sentences(&plain));
    }
    faults
}

fn indented_as_empty(line: &str) -> &str {
    if line.starts_with("  ") && item_of(line.trim()).is_none() { "" } else { line }
}

/// Help texts, messages, errors, and lines of logs.
#[test]
fn no_text_of_the_program_hides_the_actor() {
    let mut faults = Vec::new();
    let mut seen = 0;
    for path in sources() {
        let source = sources::read(&read(&path));
        // The first words about an option are in its comment.
        let helps = if path.ends_with("/args.rs") { source.comments } else { Vec::new() };
        for text in source.texts.iter().chain(&helps) {
            seen += 1;
            let found = faults_of(text);
            faults.extend(found.iter().map(|fault| format!("{path}:{}: {fault}", text.line)));
        }
    }
    report(&faults);
    assert!(seen > 500, "only {seen} texts were read");
}

#[test]
fn no_comment_hides_the_actor() {
    let mut faults = Vec::new();
    for path in sources() {
        for text in sources::read(&read(&path)).comments {
            let wrong = faults_of(&text);
            faults.extend(wrong.iter().map(|fault| format!("{path}:{}: {fault}", text.line)));
        }
    }
    report(&faults);
}

/// The number of each line that looks like the row of a table and belongs to none: a table begins
/// with a head and a delimiter, and ends at the first line that is no row.
fn rows_without_a_table(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_row = |line: Option<&&str>| line.is_some_and(|line| line.starts_with('|'));
    let is_no_delimiter = |c: char| !matches!(c, '|' | '-' | ':' | ' ');
    let mut in_code = false;
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        in_code ^= line.starts_with("```");
        let begins = is_row(Some(line)) && (index == 0 || !is_row(lines.get(index - 1)));
        let is_delimiter = |line: &&str| line.contains('-') && !line.contains(is_no_delimiter);
        let has_delimiter = lines.get(index + 1).is_some_and(is_delimiter);
        if !in_code && begins && !has_delimiter {
            found.push(index + 1);
        }
    }
    found
}

#[test]
fn every_row_belongs_to_a_table() {
    let mut faults = Vec::new();
    for page in pages().into_iter().chain([GENERATED.to_owned()]) {
        let lines = rows_without_a_table(&read(&page));
        faults.extend(lines.iter().map(|line| format!("{page}:{line}: a row without a table")));
    }
    report(&faults);
}

#[test]
fn the_pages_are_short_enough_to_be_read() {
    let mut total = 0;
    for page in pages() {
        let is_counted = (page.starts_with("docs/") || page == "README.md")
            && !page.starts_with("docs/decisions/")
            && !page.ends_with("faults.txt");
        if !is_counted {
            continue;
        }
        let count: usize = pieces(&read(&page)).iter().map(|piece| words(&piece.text)).sum();
        assert!(count > 50, "{page} has {count} words: it was not read");
        if page.starts_with("docs/engines/") {
            assert!(count <= ENGINE_WORDS_MAX, "{page} has {count} words");
        }
        println!("{count:6} {page}");
        total += count;
    }
    println!("{total:6} words in all");
    assert!(total <= DOCS_WORDS_MAX, "the README and docs have {total} words");
}

#[test]
fn readme_and_architecture_fit_a_first_reading() {
    let limits = [("README.md", README_LINES_MAX), ("ARCHITECTURE.md", ARCHITECTURE_LINES_MAX)];
    for (page, limit) in limits {
        let count = read(page).lines().count();
        assert!(count <= limit, "{page} has {count} lines, {limit} are allowed");
    }
}

#[test]
fn every_engine_has_its_page_its_column_and_its_row() {
    let safety = read("docs/safety.md");
    let head = safety.lines().find(|line| line.starts_with("| | promise | memory ")).unwrap_or("");
    let readme = read("README.md");
    for (page, column) in ENGINES {
        assert!(root().join(format!("docs/engines/{page}.md")).is_file(), "{page} has a page");
        assert!(head.contains(&format!("| {column} |")), "{column} in safety.md: {head}");
        assert!(readme.contains(&format!("](docs/engines/{page}.md)<br>")), "{page} in README.md");
    }
    let known: BTreeSet<String> = ENGINES.iter().map(|(page, _)| format!("{page}.md")).collect();
    let folder = fs::read_dir(root().join("docs/engines")).expect("the pages of engines");
    let found = folder.flatten().map(|file| file.file_name().to_string_lossy().into_owned());
    assert_eq!(found.collect::<BTreeSet<_>>(), known);
}

/// People search for these words.
#[test]
fn the_words_that_people_look_for_are_in_the_readme() {
    let wanted = ["distributed lock", "fencing token", "queue", "Redlock", "leader election"];
    let readme = read("README.md").to_lowercase();
    for word in wanted {
        assert!(readme.contains(&word.to_lowercase()), "the README does not say `{word}`");
    }
}

#[test]
fn every_page_is_on_the_map() {
    let map = read("docs/README.md");
    for page in pages().iter().chain([&GENERATED.to_owned()]) {
        let Some(name) = page.strip_prefix("docs/") else { continue };
        let is_below_another = name.starts_with("decisions/0") || name.ends_with(".txt");
        if !is_below_another && name != "README.md" {
            assert!(map.contains(&format!("]({name})")), "{page} is not in docs/README.md");
        }
    }
}

#[test]
fn every_word_of_the_architecture_is_in_the_glossary() {
    let glossary = read("docs/glossary.md").to_lowercase();
    let page = read("ARCHITECTURE.md");
    let (_, words) = page.split_once("\n## Words\n").expect("the section");
    let (words, _) = words.split_once("\n## ").expect("its end");
    let bold: Vec<&str> = words.split("**").skip(1).step_by(2).collect();
    assert!(bold.len() >= 12, "{bold:?}");
    for word in bold {
        assert!(glossary.contains(&format!("| **{word}** |")), "{word} is not in the glossary");
    }
}

/// The features and versions that a reader copies into a `Cargo.toml`.
#[test]
fn dependencies_on_the_pages_are_those_of_the_workspace() {
    let workspace = read("Cargo.toml");
    let library = read("crates/leasehold/Cargo.toml");
    let mut count = 0;
    for page in ["README.md", "docs/tutorial.md", "skills/leasehold/SKILL.md"] {
        let text = read(page);
        let blocks = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
        for line in blocks.flat_map(str::lines) {
            let Some((name, value)) = line.split_once(" = ") else { continue };
            count += 1;
            if name == "leasehold" {
                let features = value.split_once("features = [").expect("features").1;
                let features = features.split('"').skip(1).step_by(2);
                for feature in features {
                    assert!(library.contains(&format!("\n{feature} = [")), "{page}: {feature}");
                }
            } else {
                let version = value.split('"').nth(1).expect("a version");
                let entry = format!("\n{name} = {{ version = \"{version}");
                assert!(workspace.contains(&entry), "{page}: {line}");
            }
        }
    }
    assert!(count >= 7, "only {count} dependencies were read");
}

/// Each crate that the library or the command needs is code to trust, and has a reason.
#[test]
fn every_dependency_has_its_reason() {
    let decision = read("docs/decisions/0034-dependencies.md");
    let mut count = 0;
    for package in ["leasehold", "leasehold-cli"] {
        let manifest = read(&format!("crates/{package}/Cargo.toml"));
        let (_, needed) = manifest.split_once("\n[dependencies]\n").expect("dependencies");
        let needed = needed.split("\n[").next().unwrap_or("");
        for line in needed.lines() {
            let name = line.split(['.', ' ']).next().unwrap_or("");
            if !name.is_empty() && !name.starts_with(['#', '"', '}', ']']) && name != "leasehold" {
                count += 1;
                assert!(decision.contains(&format!("`{name}`")), "{name} is not in decision 34");
            }
        }
    }
    assert!(count > 30, "only {count} dependencies were found");
}

/// The names of an enum's variants.
fn variants(source: &str, name: &str) -> Vec<String> {
    let (_, body) = source.split_once(&format!("pub enum {name} {{\n")).expect("the enum");
    let (body, _) = body.split_once("\n}\n").expect("the end of the enum");
    let is_variant = |line: &&str| {
        line.starts_with("    ") && line[4..].starts_with(|c: char| c.is_ascii_uppercase())
    };
    let names = body.lines().filter(is_variant);
    names.map(|line| line.trim().split(['(', ' ', ',']).next().unwrap_or("").to_owned()).collect()
}

#[test]
fn every_error_and_status_is_on_the_page_of_errors() {
    let page = read("docs/errors.md");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).collect();
    let first_cell = |row: &&&str| row.split('|').nth(1).unwrap_or("").to_owned();
    let cells: Vec<String> = rows.iter().map(|row| first_cell(&row)).collect();
    let source = read("crates/leasehold/src/error.rs");
    let mut count = 0;
    for name in ["Error", "LostCause", "Invalid", "Config"] {
        for variant in variants(&source, name) {
            let wanted = format!("`{variant}`");
            count += 1;
            assert!(cells.iter().any(|cell| cell.contains(&wanted)), "{name}::{variant}");
        }
    }
    assert!(count > 40, "only {count} variants were found");
    let statuses = read("crates/leasehold-cli/src/exit.rs");
    let statuses = statuses.lines().filter_map(|line| {
        line.strip_prefix("pub(crate) const ")?.split_once(": u8 = ")?.1.strip_suffix(';')
    });
    let mut count = 0;
    for status in statuses {
        count += 1;
        let is_it = |cell: &String| cell.split(',').any(|part| part.trim() == status);
        assert!(cells.iter().any(is_it), "status {status}");
    }
    assert!(count >= 10, "only {count} statuses were found");
}

#[test]
fn every_decision_has_the_same_shape_and_is_listed() {
    let list = read("docs/decisions/README.md");
    let mut count = 0;
    for page in pages().iter().filter(|page| page.starts_with("docs/decisions/0")) {
        let text = read(page);
        let name = page.rsplit('/').next().unwrap_or("");
        assert!(list.contains(&format!("]({name})")), "{page} is listed");
        for part in ["\nStatus: ", " Date: 20", "\n## Context\n", "\n## Decision\n"] {
            assert!(text.contains(part), "{page} has no {part:?}");
        }
        assert!(text.contains("\n## Alternatives\n"), "{page} has alternatives");
        count += 1;
    }
    assert!(count >= 34, "only {count} decisions were found");
}

#[test]
fn rules_find_what_they_forbid() {
    let text = "A `code span` is [one *word*](https://example.com/a). Whoever\nreads it.\n\n\
                - the first item\n- the second\n  goes on\n\n| cell | he |\n\n\
                ```sh\nhe\n```\n# he\n";
    let pieces = pieces(text);
    let texts: Vec<String> = pieces.iter().map(|piece| plain(&piece.text)).collect();
    let wanted = ["A CODE is one word. Whoever reads it.", "the first item", "the second goes on"];
    assert_eq!(texts[..3], wanted);
    assert_eq!(texts[3], "| cell | he |");
    assert_eq!(sentences(&texts[0])[..2], ["A CODE is one word. ", "Whoever reads it. "]);
    let table = "| a |\n|---|\n| b |\n\n| c |\n\n```\n| d |\n```\n";
    assert_eq!(rows_without_a_table(table), [5]);
    assert!(has("so he goes", "he") && !has("the shell", "he"));
    assert_eq!(words("| cell | – | two words |"), 3);
    assert_eq!(
        variants(
            "pub enum A {\n    One(B),\n    /// x\n    Two {\n        a: B,\n    },\n}\n",
            "A"
        ),
        ["One", "Two"]
    );
}
