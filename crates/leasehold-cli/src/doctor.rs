//! `doctor`: what this store in this configuration really promises, and what to change.

use std::collections::BTreeSet;

use leasehold::engine::{Capabilities, Finding, Level, Parts};
use serde::Serialize;

use crate::exit::{self, Outcome};
use crate::out;
use crate::store::Store;
use crate::table::align;
use crate::text::escape;

/// A promise that an engine makes or does not make.
#[derive(Debug, Serialize)]
struct Promise {
    promise: &'static str,
    given: bool,
    #[serde(skip)]
    meaning: &'static str,
}

#[derive(Debug, Serialize)]
struct Found<'a> {
    level: &'static str,
    subject: &'a str,
    found: &'a str,
    advice: &'a str,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    engine: &'a str,
    store: &'a str,
    promises: Vec<Promise>,
    findings: Vec<Found<'a>>,
}

/// Looks at the store; status 78 if a promise is broken.
pub(crate) async fn doctor(store: &Store) -> Outcome {
    let findings = store.client.admin().examine().await?;
    let info = store.client.info();
    let report = Report {
        engine: info.engine,
        store: &info.store,
        promises: promises(info.can, store.client.parts()),
        findings: findings.iter().map(found).collect(),
    };
    if store.voice.json {
        out::print_json(&report)?;
    } else {
        out::print(&text(&report))?;
    }
    let broken = findings.iter().any(|finding| finding.level == Level::Bad);
    Ok(if broken { exit::CONFIG } else { exit::DONE })
}

/// Each promise, what it means where it is given, and what is missing where it is not.
const PROMISES: [[&str; 3]; 12] = [
    ["across_processes", "excludes other processes", "does NOT exclude other processes"],
    ["fifo", "those who wait are served in order of arrival", "waiters are NOT served in order"],
    [
        "shared",
        "readers beside readers: `--shared`",
        "no readers beside readers: `--shared` is refused",
    ],
    ["permits", "several at a time: `--permits K/N`", "one at a time: `--permits K/N` is refused"],
    [
        "ttl_per_claim",
        "every lock has a ttl of its own",
        "the store sets how long a lock outlives its holder, not its ttl",
    ],
    [
        "detach",
        "a lock outlives its process: `acquire`",
        "a lock ends with its process: `acquire` is refused",
    ],
    ["watch", "events as they happen: `watch`", "no events: `watch` is refused"],
    [
        "evict",
        "a lock can be taken away: `force-release`",
        "a lock cannot be taken away: `force-release` is refused",
    ],
    [
        "amend",
        "a lease's note can be replaced: `once`",
        "a lease's note stays as it is: `once` is refused",
    ],
    [
        "convert",
        "a reader can become the writer, and the writer a reader",
        "a reader cannot become the writer, nor the writer a reader",
    ],
    [
        "resize",
        "a limit can be changed while it is in use: `resize`",
        "a limit in use cannot be changed: `resize` is refused",
    ],
    ["tally", "all clients are counted: `stats`", "other clients are not counted by `stats`"],
];

fn promises(can: Capabilities, parts: &Parts) -> Vec<Promise> {
    let changes = parts.convert.is_some();
    let given = [
        can.across_processes,
        can.fifo,
        can.shared,
        can.permits,
        can.ttl_per_claim,
        parts.unattended.is_some() && can.across_processes,
        parts.watch.is_some(),
        parts.admin.is_some(),
        parts.amend.is_some(),
        changes,
        changes,
        parts.counting.is_some(),
    ];
    let told = PROMISES.into_iter().zip(given);
    told.map(|([promise, kept, missing], given)| {
        let meaning = if given { kept } else { missing };
        Promise { promise, given, meaning }
    })
    .collect()
}

fn found(finding: &Finding) -> Found<'_> {
    let level = match finding.level {
        Level::Good => "good",
        Level::Warning => "warning",
        _ => "bad",
    };
    Found { level, subject: finding.subject, found: &finding.found, advice: &finding.advice }
}

fn text(report: &Report<'_>) -> String {
    let mut text = format!("store `{}`, engine {}\n\n", escape(report.store), report.engine);
    let yes = |given: bool| if given { "yes" } else { "no" };
    let rows: Vec<[String; 3]> = report
        .promises
        .iter()
        .map(|p| [yes(p.given).to_owned(), p.promise.to_owned(), p.meaning.to_owned()])
        .collect();
    text.push_str(&align(&rows));
    text.push('\n');
    let rows: Vec<[String; 3]> = report
        .findings
        .iter()
        .map(|f| [f.level.to_owned(), f.subject.to_owned(), escape(f.found)])
        .collect();
    text.push_str(&align(&rows));
    // Several findings, or several nodes, may need the same.
    let mut given = BTreeSet::new();
    for finding in report.findings.iter().filter(|finding| !finding.advice.is_empty()) {
        if given.insert((finding.subject, finding.advice)) {
            text.push_str(&format!("\n{}: {}\n", finding.subject, escape(finding.advice)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promise_that_is_not_given_says_what_is_missing() {
        let promises =
            promises(Capabilities { fifo: false, ..Capabilities::ALL }, &Parts::default());
        let fifo = promises.iter().find(|promise| promise.promise == "fifo");
        assert_eq!(fifo.map(|fifo| fifo.meaning), Some("waiters are NOT served in order"));
        let shared = promises.iter().find(|promise| promise.promise == "shared");
        assert!(shared.is_some_and(|shared| shared.meaning.starts_with("readers beside")));
    }

    #[test]
    fn advice_for_several_nodes_is_given_once() {
        let finding =
            |found, advice| Found { level: "warning", subject: "persistence", found, advice };
        let findings = vec![
            finding("a:1: nothing", "set `appendonly yes`"),
            finding("b:1: nothing", "set `appendonly yes`"),
            finding("c:1: nothing", "give the right"),
        ];
        let report = Report { engine: "redlock", store: "x", promises: Vec::new(), findings };
        let text = text(&report);
        assert!(text.contains("a:1: nothing") && text.contains("b:1: nothing"), "{text}");
        assert_eq!(text.matches("persistence: set `appendonly yes`").count(), 1, "{text}");
        assert!(text.contains("persistence: give the right"), "{text}");
    }
}
