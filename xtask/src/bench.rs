//! `cargo xtask bench`: builds the benchmarks, runs them, and keeps the page with their results.
//!
//! `leasehold-bench` defines the measurements and the scenarios' names. This module passes its
//! output on. With `--write` it also puts the output into the page, between the markers of each
//! scenario.

use std::path::Path;
use std::{fs, io};

use crate::Failure;
use crate::command::{cargo, finished, passes, passes_with_lines, workspace_root};

const PAGE: &str = "docs/benchmarks.md";

/// The scenario that runs the `leasehold` command, which must then be built.
const NEEDS_COMMAND: &str = "command_start";

/// The part of the page that summarizes all the others.
const SUMMARY: &str = "targets";

/// The output of a scenario under its heading.
#[derive(Debug, PartialEq, Eq)]
struct Section {
    name: String,
    text: String,
}

/// Runs the command.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let write = arguments.iter().any(|argument| argument == "--write");
    let passed_on: Vec<&String> =
        arguments.iter().filter(|argument| *argument != "--write").collect();
    let unknown = |word: &&&String| word.starts_with('-') && **word != "--quick";
    if let Some(option) = passed_on.iter().find(unknown) {
        let known = "`bench` takes names of scenarios, `--quick` and `--write`";
        return Err(Failure::Message(format!("unknown option `{option}`; {known}")));
    }
    let mut scenarios = passed_on.iter().filter(|word| !word.starts_with('-')).peekable();
    if scenarios.peek().is_none() || scenarios.any(|name| *name == NEEDS_COMMAND) {
        // Built alone, as users build it: beside the benchmarks it would also get their features.
        finished(passes(&mut cargo(["build", "--profile", "dist", "--package", "leasehold-cli"])))?;
    }
    let mut lines = Vec::new();
    let mut bench =
        cargo(["run", "--profile", "dist", "--quiet", "--package", "leasehold-bench", "--"]);
    finished(passes_with_lines(bench.args(passed_on), |line| lines.push(line.to_owned())))?;
    if write {
        let path = workspace_root().join(PAGE);
        update(&path, &sections(&lines)).map_err(Failure::Message)?;
        eprintln!("xtask: wrote {PAGE}");
    }
    Ok(())
}

/// Cuts the output at its headings, `## NAME: what it is`.
fn sections(lines: &[String]) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for line in lines {
        if let Some((name, _)) = line.strip_prefix("## ").and_then(|rest| rest.split_once(':')) {
            sections.push(Section { name: name.to_owned(), text: String::new() });
        } else if let Some(section) = sections.last_mut() {
            section.text.push_str(line);
            section.text.push('\n');
        }
    }
    // The page's own summary also covers the scenarios that did not run this time.
    sections.retain(|section| section.name != SUMMARY);
    sections
}

fn update(path: &Path, sections: &[Section]) -> Result<(), String> {
    let cannot = |what: &str, error: io::Error| format!("cannot {what} {PAGE}: {error}");
    let mut page = fs::read_to_string(path).map_err(|error| cannot("read", error))?;
    for section in sections {
        page = replaced(&page, &section.name, section.text.trim())?;
    }
    page = replaced(&page, SUMMARY, &summary(&page))?;
    fs::write(path, page).map_err(|error| cannot("write", error))
}

/// The page with other text between the markers of `name`.
fn replaced(page: &str, name: &str, text: &str) -> Result<String, String> {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
    let parts =
        page.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    match parts {
        Some((before, after)) => Ok(format!("{before}{begin}\n{text}\n\n{end}{after}")),
        None => Err(format!("{PAGE} has no lines `{}` and `{end}`", begin.trim_end())),
    }
}

/// The table of all targets on the page: the rows of its tables that end with a verdict.
fn summary(page: &str) -> String {
    let own = page.find(&format!("<!-- end {SUMMARY} -->")).unwrap_or(0);
    let mut rows = vec![
        "| what | target | measured | verdict |".to_owned(),
        "|:-----|-------:|---------:|--------:|".to_owned(),
    ];
    for line in page[own..].lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if matches!(cells.last(), Some(&"met" | &"**missed**")) {
            rows.push(format!("| {} |", cells.join(" | ")));
        }
    }
    rows.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "# Page\n\n<!-- begin targets -->\n<!-- end targets -->\n\nAbout a.\n\n\
                         <!-- begin a -->\nold\n<!-- end a -->\nend\n";

    #[test]
    fn output_is_cut_at_its_headings() {
        let text = "## a: first\n\n| x |\n## b: second\ny\n## targets: 1 of 1 met\nz";
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let section = |name: &str, text: &str| Section { name: name.into(), text: text.into() };
        assert_eq!(sections(&lines), [section("a", "\n| x |\n"), section("b", "y\n")]);
    }

    #[test]
    fn only_the_text_between_the_markers_changes() {
        let page = replaced(EMPTY, "a", "new").unwrap();
        assert!(page.ends_with("About a.\n\n<!-- begin a -->\n\nnew\n\n<!-- end a -->\nend\n"));
        assert_eq!(replaced(&page, "a", "new").unwrap(), page);
        let message = replaced(EMPTY, "b", "new").unwrap_err();
        assert!(message.contains("`<!-- begin b -->`"), "{message}");
    }

    #[test]
    fn summary_gathers_the_targets_of_the_page_once() {
        let rows = "| speed | 2 × | 1 × |     met |\n| size | 1 | 2 | **missed** |\n| p50 | 3 |";
        let page = replaced(EMPTY, "a", rows).unwrap();
        let page = replaced(&page, "targets", &summary(&page)).unwrap();
        let found = summary(&page);
        let rows: Vec<&str> = found.lines().skip(2).collect();
        assert_eq!(rows, ["| speed | 2 × | 1 × | met |", "| size | 1 | 2 | **missed** |"]);
    }

    #[test]
    fn unknown_option_names_the_known_ones() {
        let Err(Failure::Message(message)) = run(&["--fast".to_owned()]) else {
            panic!("it must be refused before anything is built");
        };
        assert!(message.contains("`--fast`") && message.contains("`--quick`"), "{message}");
    }
}
