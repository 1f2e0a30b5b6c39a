//! `doctor`: what this store in this configuration really promises, and what to change.

use leasehold::engine::{Capabilities, Finding, Level};
use serde::Serialize;

use crate::exit::{self, Outcome};
use crate::out;
use crate::store::Store;
use crate::text::escape;
use crate::view::align;

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
    let findings = store.client.examine().await?;
    let info = store.client.info();
    let report = Report {
        engine: info.engine,
        store: &info.store,
        promises: promises(info.can),
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

fn promises(can: Capabilities) -> Vec<Promise> {
    let promise = |promise, given, meaning| Promise { promise, given, meaning };
    let outlives = can.detach && can.across_processes;
    vec![
        promise("across_processes", can.across_processes, "excludes other processes"),
        promise("fifo", can.fifo, "those who wait are served in order of arrival"),
        promise("shared", can.shared, "readers beside readers: `--shared`"),
        promise("permits", can.permits, "several at a time: `--permits K/N`"),
        promise("ttl_per_claim", can.ttl_per_claim, "every lock has a ttl of its own"),
        promise("detach", outlives, "a lock outlives its process: `acquire`"),
        promise("watch", can.watch, "events as they happen: `watch`"),
        promise("evict", can.evict, "a lock can be taken away: `force-release`"),
        promise("amend", can.amend, "a lease's note can be replaced: `once`"),
        promise("convert", can.convert, "a reader can become the writer, and the writer a reader"),
        promise("resize", can.resize, "a limit can be changed while it is in use: `resize`"),
        promise("tally", can.tally, "all clients are counted: `stats`"),
    ]
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
    for finding in report.findings.iter().filter(|finding| !finding.advice.is_empty()) {
        text.push_str(&format!("\n{}: {}\n", finding.subject, escape(finding.advice)));
    }
    text
}
