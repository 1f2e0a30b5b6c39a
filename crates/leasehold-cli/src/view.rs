//! `list` and `show`: lines as tables for people and as JSON for programs.

use std::time::Duration;

use leasehold::Name;
use leasehold::engine::{BrokenLine, ClaimView, OTHER_LOCKS, Query, Select};
use serde::Serialize;

use crate::args;
use crate::exit::{self, Failure, Outcome};
use crate::filter::Filter;
use crate::lines::Line;
use crate::out::{self, Voice};
use crate::record::{self, Record};
use crate::store::Store;
use crate::table::Table;
use crate::text::escape;
use crate::waits::{self, Edge, Gathered, Graph};

/// How long `show` follows the waits, because the user waits for the table.
const FOLLOWED_FOR: Duration = Duration::from_secs(3);

/// One line of `show`, with the waits around it.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    line: Line<'a>,
    waits: Vec<Edge>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    force_released: Vec<Record>,
}

/// Shows all locks, page by page, so that a store with many takes no more memory than one page.
pub(crate) async fn list(store: &Store, list: args::List) -> Outcome {
    let filter = Filter::of(&list);
    let mut query = list.prefix.map_or_else(Query::all, Query::prefix);
    let mut table = Table { whole: false, columns: out::columns(), header: true };
    let mut shown = 0;
    loop {
        let page = store.client.admin().inspect(&query).await?;
        if store.voice.json {
            let lines = page.lines.iter().map(|line| Line::filtered(line, &filter));
            let mut text = String::new();
            let lines = lines.filter(|line| !line.is_empty());
            for line in lines.chain(page.broken.iter().map(Line::broken)) {
                text.push_str(if shown == 0 { "[" } else { ",\n" });
                text.push_str(out::json_line(&line)?.trim_end());
                shown += 1;
            }
            out::print(&text)?;
        } else {
            let text = table.text(&page.lines, &filter);
            out::print(&text)?;
            shown += text.len() + page.broken.len();
            table.header &= text.is_empty();
        }
        warn_of_broken(store, &page.broken);
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    if store.voice.json {
        let end = if shown == 0 { "[]\n" } else { "]\n" };
        out::print(end)?;
    } else if shown == 0 {
        store.voice.tell(match filter.admits_all() {
            true => "nobody holds or waits for anything here",
            false => "nobody holds or waits for that long",
        });
    }
    if filter.admits_all() && query.select == Select::All {
        tell_of_strangers(store).await;
    }
    Ok(exit::DONE)
}

/// Names locks outside the store's prefix, because the prefix may be wrong.
async fn tell_of_strangers(store: &Store) {
    let Voice { json, quiet, .. } = store.voice;
    if json || quiet || !lists_no_foreign(store) {
        return;
    }
    match store.client.admin().look().await {
        Ok(findings) => {
            for finding in findings.iter().filter(|finding| finding.subject == OTHER_LOCKS) {
                store.voice.tell(&format!("not shown: {}; {}", finding.found, finding.advice));
            }
        }
        // The list is complete without it.
        Err(error) => tracing::debug!(%error, "cannot search for locks outside the prefix"),
    }
}

/// Warns about names that are not shown because their records cannot be read.
pub(crate) fn warn_of_broken(store: &Store, broken: &[BrokenLine]) {
    for BrokenLine { name, cause } in broken {
        store.voice.warn(&format!(
            "`{name}` cannot be read: {cause}; `leasehold force-release` clears the name"
        ));
    }
}

/// Shows one lock.
pub(crate) async fn show(
    show: args::Show,
    open: impl AsyncFnOnce() -> Result<Store, Failure>,
) -> Outcome {
    let name = Name::new(&show.name)?;
    let store = open().await?;
    let line = store.client.line(&name).await?;
    let force_released = record::read(&store.client, &name).await?;
    let section = record::section(&force_released);
    let Some(line) = line else {
        if store.voice.json {
            let (line, waits) = (Line::free(&name), Vec::new());
            out::print_json(&Shown { line, waits, force_released })?;
        } else {
            out::print(&format!("`{}` is free\n{section}", escape(name.as_str())))?;
        }
        return Ok(exit::DONE);
    };
    let gathered = waits::gather(&store.client, line, FOLLOWED_FOR).await;
    if let Some(error) = &gathered.trouble {
        store.voice.warn(&format!("cannot follow what holders wait for: {error}"));
    }
    let line = &gathered.lines[0];
    if store.voice.json {
        let waits = Graph::new(&gathered.lines).edges(line);
        out::print_json(&Shown { line: Line::of(line), waits, force_released })?;
    } else {
        let table = Table { whole: true, columns: None, header: true };
        let table = table.text(std::slice::from_ref(line), &Filter::default());
        out::print(&(table + &waits_section(&gathered) + &section))?;
        if line.held.iter().any(ClaimView::is_foreign) && lists_no_foreign(&store) {
            store.voice.tell(
                "a client of another library holds it; `list` and `stats` have such a lock only \
                 while a client of leasehold waits for it",
            );
        }
    }
    Ok(exit::DONE)
}

/// Whether the store can tell locks of other libraries from other data only by their names.
fn lists_no_foreign(store: &Store) -> bool {
    matches!(store.client.info().engine, "redis" | "redlock")
}

/// One sentence for each chain of waits; empty if no claim waits.
fn waits_section(gathered: &Gathered) -> String {
    let (chains, left_out) = Graph::new(&gathered.lines).chains(&gathered.lines[0]);
    if chains.is_empty() {
        return String::new();
    }
    let mut text = "\nWAITS\n".to_owned();
    for chain in &chains {
        text.push_str(&chain.sentence());
        text.push('\n');
    }
    if left_out > 0 {
        text.push_str(&format!("… and {left_out} more\n"));
    }
    if !gathered.whole {
        text.push_str("… more claims are concerned than were followed\n");
    }
    text
}
