//! Reading many lines: finding their names by SCAN, and viewing them in batches.

use std::collections::BTreeSet;

use redis::{FromRedisValue, Value};

use crate::engine::{BrokenLine, LineView, Page, Query, Select, Totals};
use crate::error::Result;
use crate::rule::line::Line;
use crate::rule::name::Name;

use super::keys::{Keys, WITHOUT_FENCE};
use super::scripts::{Call, VIEW};
use super::{Inner, Odd, answer};

/// Keys looked at in one exchange of a scan.
const SCAN_COUNT: usize = 1_000;
/// Lines viewed in one exchange.
const VIEWS_MAX: usize = 200;

/// What is wrong with a line that cannot be read.
const BROKEN: &str = "its keys hold something that leasehold never writes";

/// A page of the lines asked for.
pub(super) async fn inspect(inner: &Inner, query: &Query) -> Result<Page> {
    let mut page = Page::default();
    let mut after = query.after.clone();
    loop {
        let wanted = query.page_lines() - page.lines.len() - page.broken.len();
        let names = names(inner, query, after.as_ref(), wanted + 1).await?;
        let more = names.len() > wanted;
        let names: Vec<Name> = names.into_iter().take(wanted).collect();
        let (views, broken) = views(inner, &names).await?;
        if let Select::Holder(holder) = &query.select {
            let theirs = views.into_iter().filter(|(_, line)| line.has_claim_of(*holder));
            page.lines.extend(theirs.map(|(view, _)| view));
        } else {
            page.lines.extend(views.into_iter().map(|(view, _)| view));
            page.broken.extend(broken);
        }
        after = names.last().cloned();
        if !more {
            return Ok(page);
        }
        if page.lines.len() + page.broken.len() == query.page_lines() {
            page.next = after;
            return Ok(page);
        }
    }
}

/// What is in all lines.
pub(super) async fn count(inner: &Inner, totals: &mut Totals) -> Result<()> {
    let mut after = None;
    loop {
        let names = names(inner, &Query::all(), after.as_ref(), Query::LINES_MAX).await?;
        let names: Vec<Name> = names.into_iter().collect();
        let (views, _broken) = views(inner, &names).await?;
        for (view, _) in views {
            totals.active += view.held.len() as u64;
            totals.waiting += view.waiting.len() as u64;
        }
        if names.len() < Query::LINES_MAX {
            return Ok(());
        }
        after = names.last().cloned();
    }
}

/// Whether the keys of a name cannot be read.
pub(super) async fn is_broken(inner: &Inner, name: &Name) -> Result<bool> {
    let (_, broken) = views(inner, std::slice::from_ref(name)).await?;
    Ok(!broken.is_empty())
}

/// Deletes the keys of a line. Fences go on: their counter is no key of a line.
pub(super) async fn remove(inner: &Inner, keys: &Keys) -> Result<()> {
    let mut delete = redis::cmd("DEL");
    for key in keys.iter().take(WITHOUT_FENCE) {
        delete.arg(key);
    }
    inner.links.run(&delete).await.map(drop)
}

/// The first `count` names asked for that come behind `after`.
async fn names(
    inner: &Inner,
    query: &Query,
    after: Option<&Name>,
    count: usize,
) -> Result<BTreeSet<Name>> {
    let wanted = |name: &Name| query.admits(name) && after.is_none_or(|after| name > after);
    if let Select::Name(name) = &query.select {
        return Ok(Some(name.clone()).filter(wanted).into_iter().collect());
    }
    let pattern = inner.layout.pattern(&query.select);
    let mut names = BTreeSet::new();
    let mut keep = |keys: Vec<Vec<u8>>| {
        for name in keys.iter().filter_map(|key| inner.layout.name_of_line(key)).filter(wanted) {
            names.insert(name);
            if names.len() > count {
                names.pop_last();
            }
        }
    };
    if inner.links.shape.is_cluster() {
        let connections = inner.links.shape.connect_each().await;
        for mut server in connections.map_err(|error| inner.links.translate(&error))? {
            let mut cursor = 0;
            loop {
                let answer = scan(cursor, &pattern).query_async::<Value>(&mut server).await;
                let answer = answer.map_err(|error| inner.links.translate(&error))?;
                let (next, keys) = inner.understood(scanned(answer))?;
                keep(keys);
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        return Ok(names);
    }
    let mut cursor = 0;
    loop {
        let answer = inner.links.run(&scan(cursor, &pattern)).await?;
        let (next, keys) = inner.understood(scanned(answer))?;
        keep(keys);
        cursor = next;
        if cursor == 0 {
            return Ok(names);
        }
    }
}

pub(super) fn scan(cursor: u64, pattern: &str) -> redis::Cmd {
    let mut scan = redis::cmd("SCAN");
    scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
    scan
}

pub(super) fn scanned(answer: Value) -> Result<(u64, Vec<Vec<u8>>), answer::Odd> {
    FromRedisValue::from_redis_value(answer).map_err(|_| answer::Odd)
}

/// Views of those lines that somebody is in, and the names whose keys cannot be read.
async fn views(
    inner: &Inner,
    names: &[Name],
) -> Result<(Vec<(LineView, Line<()>)>, Vec<BrokenLine>)> {
    let (mut views, mut broken) = (Vec::new(), Vec::new());
    for names in names.chunks(VIEWS_MAX) {
        let mut calls = Vec::with_capacity(names.len());
        for name in names {
            calls.push(Call::without_fence(&VIEW, &inner.layout.keys(name)?, 0));
        }
        for (answer, name) in inner.links.call_all(&calls).await?.into_iter().zip(names) {
            match answer::view(answer, name) {
                Ok(view) => views.extend(view),
                Err(Odd) => broken.push(BrokenLine { name: name.clone(), cause: BROKEN.into() }),
            }
        }
    }
    Ok((views, broken))
}
