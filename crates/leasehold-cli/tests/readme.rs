//! Runs the documentation: every shell block with the real command. Also follows every link.
//!
//! The fence line decides how the test treats a block:
//!
//! * `sh`: one script, run with `sh -eu`; `sh exits=N` expects that status.
//! * `console`: a transcript. The test runs lines with `$ ` (`> ` continues one), and compares
//!   their output with the lines below. `$ echo $?` follows a command whose status is not 0.
//! * `crontab`: `sh` runs the command of each line.
//! * any of them with `no-run`: not run, but counted; `NOT_RUN` lists all of these.
//!
//! Each block has a new home, so it starts with an empty default store. The blocks of the tutorial
//! share one home, like the home of its reader. Programs written as `./NAME` stand for the reader's
//! own; they exist, and do nothing. Before the test compares output, it masks the width of columns,
//! and numbers with something around them (durations, process ids, handles). `…` at the end of a
//! line stands for any rest of it. A line with only `…` stands for any rest of the output.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Only a broken test reaches this limit.
const BOUND: Duration = Duration::from_secs(60);

/// The blocks that cannot run here, by one of their lines: they build or test the whole project.
const NOT_RUN: [&str; 4] = [
    "cargo run -- run hello -- echo \"one at a time\"",
    "cargo xtask test",
    "cargo install --path crates/leasehold-cli",
    "cargo new payment",
];

/// The home of the reader, as the documentation writes it.
const HOME: &str = "/home/you";

/// Ends the output of one command in a transcript; a character that no program prints.
const END: char = '\u{1e}';

#[test]
fn the_readme_can_be_followed() {
    run_blocks("README.md");
}

#[test]
fn the_tutorial_can_be_followed_from_top_to_bottom() {
    run_blocks_in("docs/tutorial.md", Some(&Home::new()));
}

#[test]
fn the_how_to_pages_can_be_followed() {
    let pages = pages();
    let pages: Vec<_> = pages.iter().filter(|page| page.starts_with("docs/how-to/")).collect();
    assert!(pages.len() >= 10, "pages were found at all");
    for page in pages {
        run_blocks(page);
    }
}

#[test]
fn the_reference_of_the_library_can_be_followed() {
    run_blocks("docs/library.md");
}

#[test]
fn the_reference_of_the_command_can_be_followed() {
    run_blocks("docs/cli.md");
}

#[test]
fn the_other_pages_can_be_followed() {
    let own = ["README.md", "docs/tutorial.md", "docs/library.md", "docs/cli.md"];
    let pages = pages();
    let others = pages
        .iter()
        .filter(|page| !own.contains(&page.as_str()) && !page.starts_with("docs/how-to/"));
    let ran: usize = others.map(|page| run_blocks(page)).sum();
    assert!(ran >= 8, "blocks were found at all");
}

#[test]
fn the_picture_shows_what_the_command_prints() {
    let picture = read("docs/demo.svg");
    assert!(!picture.contains("animat"), "it is readable at once");
    let lines: Vec<String> = picture.lines().filter_map(text_of_picture).collect();
    let (first, rest) = lines.split_first().expect("the picture has text");
    // The first shell is at work while the second one asks.
    let first = first.replace("./deploy.sh", "sleep 3 &");
    let text = format!("{first}\n$ sleep 1\n{}\n", rest.join("\n"));
    let home = Home::new();
    home.stand_in_for_programs(&text);
    replay(&home, &steps(&text)).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(rest.len(), 6, "all of it was compared");
}

#[test]
fn no_rust_of_a_page_has_hidden_lines() {
    let mut hidden = Vec::new();
    for page in pages() {
        let mut in_rust = false;
        for (index, line) in read(&page).lines().enumerate() {
            if let Some(info) = line.trim_start().strip_prefix("```") {
                in_rust = info.starts_with("rust");
            } else if in_rust && (line == "#" || line.starts_with("# ")) {
                hidden.push(format!("{page}:{}: {line}", index + 1));
            }
        }
    }
    assert!(hidden.is_empty(), "a reader sees these lines: {}", hidden.join("\n"));
}

#[test]
fn the_two_commands_of_the_readme_are_there_word_for_word() {
    let readme = read("README.md");
    for command in &NOT_RUN[..2] {
        assert!(readme.lines().any(|line| line == *command), "{command}");
    }
    // These settings make them work in a new checkout: one default package with one program, an
    // alias.
    let members = "default-members = [\"crates/leasehold-cli\"]";
    assert!(read("Cargo.toml").contains(members));
    assert!(read(".cargo/config.toml").contains("xtask = \"run --quiet --package xtask --\""));
    let home = Home::new();
    let (status, output) = home.run("leasehold run hello -- echo \"one at a time\"");
    assert_eq!((status, output.as_str()), (0, "one at a time\n"));
}

#[test]
fn every_command_of_the_help_is_in_the_reference() {
    let (status, help) = Home::new().run("leasehold --help");
    assert_eq!(status, 0);
    let reference = read("docs/cli.md");
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands = commands.take_while(|line| !line.is_empty());
    // A line that continues a description is indented further.
    let commands = commands.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let commands = commands.filter(|command| !command.is_empty());
    let mut count = 0;
    for command in commands.filter(|command| *command != "help") {
        let heading = format!("\n## {command}\n");
        assert!(reference.contains(&heading), "`{command}` has no section in docs/cli.md");
        let (_, help) = Home::new().run(&format!("leasehold {command} --help"));
        for option in help.lines().filter_map(long_option) {
            assert!(reference.contains(&option), "`{command} {option}` is not in docs/cli.md");
        }
        count += 1;
    }
    assert!(count >= 13, "the help lists its commands");
}

#[test]
fn every_relative_link_leads_somewhere() {
    let mut broken = Vec::new();
    let mut count = 0;
    for page in pages() {
        let text = read(&page);
        for link in links(&text) {
            count += 1;
            if let Err(reason) = follow(&page, &link) {
                broken.push(format!("{page}: `{link}` {reason}"));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(count > 20, "links were found at all");
}

#[test]
fn every_test_that_the_pages_name_exists() {
    let mut sources = String::new();
    collect_sources(&root().join("crates"), &mut sources);
    let faults = read("docs/faults.md");
    let pages = read("docs/safety.md")
        + &faults
        + &read("docs/decisions/0001-messages-that-may-be-late.md");
    let named = pages.split('`').skip(1).step_by(2);
    let tests: BTreeSet<&str> = named.filter(|word| is_test_name(word)).collect();
    let missing: Vec<&&str> =
        tests.iter().filter(|test| !sources.contains(&format!("fn {test}("))).collect();
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(tests.len() > 50, "names were found at all");
}

/// A block of a page, with the line it starts at.
#[derive(Debug)]
struct Block {
    page: String,
    line: usize,
    kind: Kind,
    no_run: bool,
    exits: i32,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Script,
    Transcript,
    Crontab,
}

/// One command of a transcript.
#[derive(Debug)]
struct Step {
    command: String,
    output: Vec<String>,
    exits: i32,
}

#[track_caller]
fn run_blocks(page: &str) -> usize {
    run_blocks_in(page, None)
}

/// Runs the blocks of a page, in this home or each in one of its own, and returns how many ran.
#[track_caller]
fn run_blocks_in(page: &str, home: Option<&Home>) -> usize {
    let mut failures = Vec::new();
    let (mut ran, mut not_run) = (0, Vec::new());
    for block in blocks(page) {
        let at = format!("{page}:{}", block.line);
        if block.no_run {
            let known = NOT_RUN.iter().any(|line| block.text.lines().any(|other| other == *line));
            assert!(known, "{at}: a block may not say `no-run` without being in `NOT_RUN`");
            not_run.push(at);
            continue;
        }
        ran += 1;
        let fresh = home.is_none().then(Home::new);
        let home = home.or(fresh.as_ref()).expect("one of them is there");
        if let Err(failure) = run(&block, home) {
            failures.push(format!("{at}: {failure}\n{}", block.text));
        }
    }
    println!("{page}: {ran} blocks run, {} not run: {}", not_run.len(), not_run.join(", "));
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    ran
}

fn run(block: &Block, home: &Home) -> Result<(), String> {
    home.stand_in_for_programs(&block.text);
    match block.kind {
        Kind::Script => {
            let (status, output) = home.run(&format!("set -eu\n{}", block.text));
            expect_status(block.exits, status, &output)
        }
        Kind::Crontab => {
            for line in block.text.lines().filter(|line| !line.starts_with('#')) {
                let command: Vec<&str> = line.splitn(6, ' ').collect();
                let (status, output) = home.run(command.last().unwrap_or(&""));
                expect_status(0, status, &output)?;
            }
            Ok(())
        }
        Kind::Transcript => replay(home, &steps(&block.text)),
    }
}

fn expect_status(expected: i32, status: i32, output: &str) -> Result<(), String> {
    match status == expected {
        true => Ok(()),
        false => Err(format!("status {status} instead of {expected}, output:\n{output}")),
    }
}

/// Waits until `count` claims are in line. A busy machine may start background commands later than
/// the sleep of the transcript.
const IN_LINE: &str = "in_line() {
    for _ in $(seq 200); do
        [ \"$(leasehold list 2>&1 | grep -c -e ' held ' -e ' waits ')\" -ge \"$1\" ] && return 0
        command sleep 0.05
    done
}
";

/// Runs a transcript in one shell and compares what it prints.
fn replay(home: &Home, steps: &[Step]) -> Result<(), String> {
    let mut script = String::from(IN_LINE);
    let mut claims = 0;
    for step in steps {
        script.push_str(&step.command);
        if step.command.ends_with('&') {
            claims += step.command.matches("leasehold ").count();
        }
        if claims > 0 && step.command.starts_with("sleep ") {
            script.push_str(&format!("\nin_line {claims}"));
        }
        script.push_str("\nstatus=$?; printf '\\036%s\\036' $status; (exit $status)\n");
    }
    script.push_str("wait\n");
    let (_, output) = home.run(&script);
    let mut parts = output.split(END);
    for step in steps {
        let printed = parts.next().unwrap_or_default().trim_start_matches('\n');
        let status = parts.next().and_then(|status| status.parse().ok());
        let Some(status) = status else { return Err(format!("it stopped: {output}")) };
        expect_status(step.exits, status, printed)
            .and_then(|()| compare(&step.output, printed))
            .map_err(|failure| format!("`{}`: {failure}", step.command))?;
    }
    Ok(())
}

fn compare(expected: &[String], printed: &str) -> Result<(), String> {
    let mut lines = printed.lines();
    for wanted in expected {
        if wanted == "…" {
            return Ok(());
        }
        let line = lines.next().ok_or_else(|| format!("`{wanted}` was not printed"))?;
        let same = match wanted.strip_suffix('…') {
            Some(start) => masked(line).starts_with(&masked(start)),
            None => masked(line) == masked(wanted),
        };
        if !same {
            return Err(format!("printed:\n{line}\ninstead of:\n{wanted}"));
        }
    }
    match lines.next() {
        Some(more) => Err(format!("it also printed:\n{more}")),
        None => Ok(()),
    }
}

/// A line without the parts that differ from run to run. These are words with digits among other
/// characters, the width of columns, and all numbers in JSON. Fences and statuses stay.
fn masked(line: &str) -> String {
    let json = line.starts_with(['{', '[']);
    let mut masked = String::new();
    let mut word = String::new();
    let is_in_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':' | '.' | '-' | '/');
    for c in line.chars().chain(['\n']) {
        if is_in_word(c) {
            word.push(c);
            continue;
        }
        let digits = word.chars().filter(char::is_ascii_digit).count();
        let plain = digits == 0 || (digits == word.len() && !json);
        masked.push_str(if plain { &word } else { "#" });
        word.clear();
        masked.push(c);
    }
    masked.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The commands of a transcript, with their output and status.
fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("$ "), line.strip_prefix("> "), steps.last_mut()) {
            (Some(command), ..) => {
                let (command, output) = (command.to_owned(), Vec::new());
                steps.push(Step { command, output, exits: 0 });
            }
            (None, Some(more), Some(step)) if step.output.is_empty() => {
                step.command.push('\n');
                step.command.push_str(more);
            }
            (None, _, Some(step)) => step.output.push(line.to_owned()),
            (None, _, None) => panic!("a transcript begins with a command: {text}"),
        }
    }
    for index in 1..steps.len() {
        if steps[index].command == "echo $?" {
            let status = steps[index].output.first().and_then(|status| status.parse().ok());
            steps[index - 1].exits = status.expect("a status stands below `$ echo $?`");
        }
    }
    steps
}

/// The text of a line of the picture, if it is a command, its result or a message.
fn text_of_picture(line: &str) -> Option<String> {
    let text = ["command", "result", "message"]
        .iter()
        .find_map(|class| line.strip_prefix(&format!("<text class=\"{class}\"")))?;
    let (_, text) = text.strip_suffix("</text>")?.split_once('>')?;
    Some(text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    let mut other = false;
    for (index, line) in read(page).lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (fence, &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(_), None) if other => other = false,
            (Some(info), None) => {
                open = begin(page, index + 1, info);
                other = open.is_none();
            }
            (None, Some(block)) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none() && !other, "{page}: a block is not closed");
    blocks
}

/// The block that the fence line begins, if this test runs it.
fn begin(page: &str, line: usize, info: &str) -> Option<Block> {
    let mut words = info.split_whitespace();
    let kind = match words.next() {
        Some("sh") => Kind::Script,
        Some("console") => Kind::Transcript,
        Some("crontab") => Kind::Crontab,
        Some("bash" | "shell") => panic!("{page}:{line}: write `sh` or `console`"),
        _ => return None,
    };
    let (page, text) = (page.to_owned(), String::new());
    let mut block = Block { page, line, kind, no_run: false, exits: 0, text };
    for word in words {
        match word.strip_prefix("exits=").map(str::parse) {
            Some(Ok(status)) => block.exits = status,
            _ if word == "no-run" => block.no_run = true,
            _ => panic!("{}:{line}: `{word}` is not understood", block.page),
        }
    }
    Some(block)
}

/// The home of a reader who has just installed the command.
struct Home {
    folder: PathBuf,
}

impl Home {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = format!("leasehold-docs-{}-{count}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(folder.join("bin")).expect("a home for the test");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_leasehold"), folder.join("bin/leasehold"))
            .expect("the command is there");
        Self { folder }
    }

    /// Puts a program at every `./NAME`.
    fn stand_in_for_programs(&self, text: &str) {
        let is_end = |c: char| c.is_whitespace() || matches!(c, '\'' | '"' | ';' | ')' | '`');
        let words = text.split("./").skip(1).filter_map(|rest| rest.split(is_end).next());
        for program in words.filter(|word| !word.is_empty()) {
            let path = self.folder.join(program);
            if path.exists() {
                continue;
            }
            std::fs::write(&path, "#!/bin/sh\n").expect("room for a script");
            let executable = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(&path, executable).expect("it is our file");
        }
    }

    /// Runs a script to its end; returns its status and all its output.
    fn run(&self, script: &str) -> (i32, String) {
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", self.folder.join("bin").display());
        let mut command = Command::new("sh");
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LEASEHOLD_") {
                command.env_remove(name);
            }
        }
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        command
            .args(["-c", script])
            .current_dir(&self.folder)
            .env("HOME", &self.folder)
            .env("XDG_STATE_HOME", self.folder.join(".local/state"))
            .env("PATH", path)
            .stdin(Stdio::null())
            .stdout(writer.try_clone().expect("a second end"))
            .stderr(writer)
            .process_group(0);
        let mut child = command.spawn().expect("a shell");
        // Closes this process's ends of the pipe, so that reading ends when the script does.
        drop(command);
        let output = std::thread::spawn(move || {
            let mut output = Vec::new();
            let _ended = reader.read_to_end(&mut output);
            String::from_utf8_lossy(&output).into_owned()
        });
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("it can be waited for") {
                break status;
            }
            if begun.elapsed() > BOUND {
                let _gone = child.kill();
                panic!("it did not end within {BOUND:?}: {script}");
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let status = status.code().unwrap_or_else(|| -status.signal().unwrap_or(0));
        let output = output.join().expect("it only reads");
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let output = output.replace(&format!("\"host\":\"{host}\""), "\"host\":\"web1\"");
        let output = output.replace(&self.folder.display().to_string(), HOME);
        (status, without_words_to_root(&output))
    }
}

/// The output for a reader who is not root. The user that runs the tests may be root.
fn without_words_to_root(output: &str) -> String {
    let mut parts = output.split("leasehold: this lock excludes root's");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.split_once('\n').map_or("", |(_, rest)| rest));
    }
    text
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ignored = std::fs::remove_dir_all(&self.folder);
    }
}

/// The long option of a line of help, such as `--no-wait`.
fn long_option(line: &str) -> Option<String> {
    let words = line.trim_start().split([' ', ',']);
    let option = words.take(3).find(|word| word.starts_with("--"))?;
    (line.starts_with("  ") && option.len() > 2).then(|| option.to_owned())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(page: &str) -> String {
    let path = root().join(page);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// Whether a word is the name of a test: such a name has many words.
fn is_test_name(word: &str) -> bool {
    let is_snake = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    word.chars().all(is_snake) && word.matches('_').count() >= 3
}

fn collect_sources(folder: &Path, sources: &mut String) {
    for entry in std::fs::read_dir(folder).expect("a folder of the project").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect_sources(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push_str(&std::fs::read_to_string(&path).expect("sources are text"));
        }
    }
}

/// Every page for people and for agents, relative to the root.
fn pages() -> BTreeSet<String> {
    let mut pages = BTreeSet::from(["docs/llms.txt".to_owned()]);
    let folders = [
        "",
        "deploy/",
        "docs/",
        "docs/decisions/",
        "docs/engines/",
        "docs/how-to/",
        "skills/leasehold/",
    ];
    for folder in folders {
        let files = std::fs::read_dir(root().join(folder)).expect("a folder of the project");
        let names = files.flatten().map(|file| file.file_name().to_string_lossy().into_owned());
        pages.extend(
            names.filter(|name| name.ends_with(".md")).map(|name| format!("{folder}{name}")),
        );
    }
    pages
}

/// The targets of `[…](target)` and `src="target"` outside of code blocks.
fn links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for (start, end) in [("](", ')'), ("src=\"", '"')] {
            let rests = line.split(start).skip(1).filter_map(|rest| rest.split_once(end));
            links.extend(rests.map(|(target, _)| target.to_owned()));
        }
    }
    links.retain(|link| !link.contains("://") && !link.starts_with("mailto:"));
    links
}

fn follow(page: &str, link: &str) -> Result<(), String> {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let folder = Path::new(page).parent().unwrap_or(Path::new(""));
    let target = match path {
        "" => root().join(page),
        path => root().join(folder).join(path),
    };
    if !target.exists() {
        return Err("is not there".to_owned());
    }
    if anchor.is_empty() || target.extension().is_none_or(|extension| extension != "md") {
        return Ok(());
    }
    let text = std::fs::read_to_string(&target).map_err(|error| error.to_string())?;
    match text.lines().filter_map(heading).any(|heading| heading == anchor) {
        true => Ok(()),
        false => Err("has no such heading".to_owned()),
    }
}

/// The fragment id of a heading.
fn heading(line: &str) -> Option<String> {
    let text = line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?;
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    Some(kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect())
}
