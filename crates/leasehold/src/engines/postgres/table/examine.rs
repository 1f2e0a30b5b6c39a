//! What `doctor` says about a server: whether the promises hold there.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio_postgres::Row;

use crate::clock::remote::STILL_MIN;
use crate::engine::{Finding, Level};
use crate::error::Result;

use super::super::failure::broken;
use super::super::link::one;
use super::Inner;
use super::bells::{Hearing, POLL_EVERY};

/// The oldest server that is tested with is 15; what is used has been there since 12.
const VERSION_MIN: i32 = 120_000;

/// A server's clock that is off by more than this should be looked at, although only its rate
/// matters.
const CLOCK_OFF_MAX: Duration = Duration::from_secs(5);

/// A transaction that is open for longer than this keeps dead rows from being cleared away.
const TRANSACTION_LONG_S: i64 = 3_600;

pub(super) async fn examine(inner: &Arc<Inner>) -> Result<Vec<Finding>> {
    let rows = inner.query(&inner.statements.examine, &[]).await?;
    let row = one(&inner.settings.store, rows)?;
    let still = stands_still(inner, &row).await?;
    let found = findings(&row).map_err(|_| broken(&inner.settings.store, "odd settings"))?;
    let hearing = inner.room().ear.open(inner).await;
    let told = inner.clock_watch.last();
    let told = told.iter().map(Finding::of_server_alert);
    let last = [bells(hearing), encryption(inner)];
    Ok(found.into_iter().chain(still).chain(told).chain(last).collect())
}

/// Looks at the server's clock once more, to see whether it runs.
async fn stands_still(inner: &Arc<Inner>, first: &Row) -> Result<Option<Finding>> {
    tokio::time::sleep(2 * STILL_MIN).await;
    let rows = inner.query(&inner.statements.examine, &[]).await?;
    let (first, next) = (first.try_get::<_, i64>(11), one(&inner.settings.store, rows)?);
    let same =
        matches!((first, next.try_get::<_, i64>(11)), (Ok(first), Ok(next)) if first == next);
    Ok(same.then(|| {
        let advice = "nothing expires on this server: see to its clock";
        finding(Level::Bad, "clock", "the server's stands still".into(), advice)
    }))
}

fn findings(row: &Row) -> std::result::Result<Vec<Finding>, tokio_postgres::Error> {
    Ok(vec![
        version(row.try_get(0)?, row.try_get(1)?),
        schema(row.try_get(10)?),
        commit(row.try_get(2)?),
        disk(row.try_get(3)?, row.try_get(4)?),
        primary(row.try_get(5)?),
        standbys(row.try_get(6)?, row.try_get(7)?),
        clock(row.try_get(11)?),
        connections(row.try_get(9)?, row.try_get(8)?),
        transactions(row.try_get(12)?),
    ])
}

fn version(text: &str, number: i32) -> Finding {
    let found = format!("PostgreSQL {text}");
    if number >= VERSION_MIN {
        return good("version", found);
    }
    finding(Level::Warning, "version", found, "use PostgreSQL 12 or later")
}

fn schema(version: i32) -> Finding {
    good("schema", format!("version {version}"))
}

fn commit(setting: &str) -> Finding {
    let found = format!("synchronous_commit is {setting}");
    match setting {
        "off" => finding(
            Level::Bad,
            "commits",
            format!("{found}: a crash forgets leases that were granted"),
            "set synchronous_commit = on for this role: ALTER ROLE … SET synchronous_commit = on",
        ),
        _ => good("commits", found),
    }
}

fn disk(fsync: &str, full_pages: &str) -> Finding {
    match (fsync, full_pages) {
        ("on", "on") => good("disk", "what is committed survives power loss".into()),
        ("on", _) => finding(
            Level::Warning,
            "disk",
            "full_page_writes is off: power loss may damage the tables".into(),
            "set full_page_writes = on unless the file system writes whole pages",
        ),
        _ => finding(
            Level::Bad,
            "disk",
            "fsync is off: power loss forgets leases and fences".into(),
            "set fsync = on",
        ),
    }
}

fn primary(in_recovery: bool) -> Finding {
    match in_recovery {
        false => good("server", "takes writes".into()),
        true => finding(
            Level::Bad,
            "server",
            "is a standby, and grants nothing".into(),
            "name the primary in the url, or all servers, separated by commas",
        ),
    }
}

fn standbys(names: &str, connected: i64) -> Finding {
    match (names, connected) {
        ("", 0) => good("fail-over", "no standby: the server's disk is the store".into()),
        ("", count) => finding(
            Level::Warning,
            "fail-over",
            format!("{count} standbys follow asynchronously: a fail-over forgets the last leases"),
            "set synchronous_standby_names, or rely on fences, which stay in order",
        ),
        (_, _) => good("fail-over", "a standby has every lease before it is answered".into()),
    }
}

fn clock(server_ms: i64) -> Finding {
    let here = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let there = Duration::from_millis(u64::try_from(server_ms).unwrap_or_default());
    let off = here.abs_diff(there);
    if off <= CLOCK_OFF_MAX {
        return good("clock", "the server's, which agrees with ours".into());
    }
    finding(
        Level::Warning,
        "clock",
        format!("the server's is {off:.0?} off ours"),
        "keep both in step (NTP); leases count on the server's, and a step of it ends or prolongs \
         them",
    )
}

fn connections(used: i64, most: i32) -> Finding {
    let found =
        format!("{used} of {most} in use; each client needs 1 to 3, and up to 7 under load");
    if used * 10 < i64::from(most) * 9 {
        return good("connections", found);
    }
    finding(Level::Warning, "connections", found, "raise max_connections, or use fewer clients")
}

fn transactions(longest_s: i64) -> Finding {
    if longest_s < TRANSACTION_LONG_S {
        return good("transactions", "none is open for long".into());
    }
    finding(
        Level::Warning,
        "transactions",
        format!("one is open for {longest_s} s, and keeps dead rows from being cleared away"),
        "end it (pg_stat_activity), or set idle_in_transaction_session_timeout",
    )
}

fn bells(hearing: Hearing) -> Finding {
    match hearing {
        Hearing::Bells => good("bells", "waiting claims are rung".into()),
        Hearing::Proxied => finding(
            Level::Warning,
            "bells",
            format!(
                "notifications do not arrive, probably for a transaction-pooling proxy; waiting \
                 claims ask every {POLL_EVERY:?} instead"
            ),
            "connect to the server itself, or let the proxy pool sessions",
        ),
        _ => finding(
            Level::Warning,
            "bells",
            "no connection to hear them on".into(),
            "see whether the server has connections left",
        ),
    }
}

fn encryption(inner: &Inner) -> Finding {
    match inner.settings.tls {
        Some(_) => good("encryption", "TLS, and the server's name is checked".into()),
        None => good("encryption", "none, as the url says or the server is on this machine".into()),
    }
}

fn good(subject: &'static str, found: String) -> Finding {
    finding(Level::Good, subject, found, "")
}

fn finding(level: Level, subject: &'static str, found: String, advice: &str) -> Finding {
    Finding { level, subject, found, advice: advice.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_breaks_a_promise_is_bad_and_what_weakens_it_a_warning() {
        assert_eq!(commit("off").level, Level::Bad);
        assert_eq!(commit("remote_apply").level, Level::Good);
        assert_eq!(disk("off", "on").level, Level::Bad);
        assert_eq!(disk("on", "off").level, Level::Warning);
        assert_eq!(primary(true).level, Level::Bad);
        assert_eq!(standbys("", 1).level, Level::Warning);
        assert_eq!(standbys("*", 1).level, Level::Good);
        assert_eq!(clock(0).level, Level::Warning);
        assert_eq!(connections(95, 100).level, Level::Warning);
        assert_eq!(bells(Hearing::Proxied).level, Level::Warning);
    }
}
