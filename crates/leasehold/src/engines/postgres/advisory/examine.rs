//! What `doctor` says about a server for advisory locks.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Finding, Level};
use crate::error::Result;

use super::super::link::one;
use super::Inner;
use super::survey::{Keepalive, Survey};

/// What the server is told to give a silent connection up after; it looks once a probe is due.
const SILENCE_MAX: Duration = Duration::from_secs(18);

pub(super) async fn examine(inner: &Arc<Inner>) -> Result<Vec<Finding>> {
    let store = &inner.settings.store;
    let row = one(store, inner.ask(&inner.statements.examine, &[]).await?)?;
    let survey = inner.survey().await?;
    let collisions = inner.ask(&inner.statements.collisions, &[]).await?;
    let sessions = inner.book().seats.len();
    Ok(vec![
        good("version", format!("PostgreSQL {}", row.get::<_, &str>(0))),
        primary(row.get(3)),
        disk(row.get(2)),
        proxy(survey.own),
        connections(row.get(5), row.get(4)),
        good(
            "sessions",
            format!(
                "this client has {sessions}, at most {}, and one beside them; all clients have {}",
                inner.settings.connections,
                row.get::<_, i64>(6)
            ),
        ),
        locks(row.get(7), row.get(8)),
        timeouts(&survey),
        keepalives(survey.keepalive),
        guard(inner.guard, row.get(9), row.get(10)),
        good("keys", format!("by `{}`", inner.keys.name())),
        collided(collisions.first().map(|row| row.get(0))),
    ])
}

fn primary(in_recovery: bool) -> Finding {
    match in_recovery {
        false => good("server", "takes writes".into()),
        true => finding(
            Level::Bad,
            "server",
            "is a standby, and gives no fences".into(),
            "name the primary in the url, or all servers, separated by commas",
        ),
    }
}

fn disk(fsync: &str) -> Finding {
    match fsync {
        "on" => good("disk", "fences survive power loss".into()),
        _ => finding(
            Level::Bad,
            "disk",
            "fsync is off: power loss forgets fences".into(),
            "set fsync = on",
        ),
    }
}

fn connections(used: i64, most: i32) -> Finding {
    let found = format!("{used} of {most} in use; a claim that waits needs one of its own");
    if used * 10 < i64::from(most) * 8 {
        return good("connections", found);
    }
    finding(
        Level::Warning,
        "connections",
        found,
        "raise max_connections, or use the lease table (`postgres://`), which waits without",
    )
}

fn locks(used: i64, room: i64) -> Finding {
    let found = format!("{used} advisory locks; the server's table has room for about {room}");
    if used * 10 < room * 8 {
        return good("locks", found);
    }
    finding(Level::Warning, "locks", found, "raise max_locks_per_transaction")
}

fn proxy(own: bool) -> Finding {
    match own {
        true => good("proxy", "none: the process that answers is the one that was named".into()),
        false => finding(
            Level::Bad,
            "proxy",
            "another process answers than the one that was named: a proxy lends sessions".into(),
            "connect to the server itself, or use the lease table (`postgres://`)",
        ),
    }
}

fn timeouts(survey: &Survey) -> Finding {
    if survey.idle.is_zero() {
        return finding(
            Level::Bad,
            "timeouts",
            "idle_session_timeout is 0: a client that is frozen keeps its locks".into(),
            "let nothing between here and the server change the settings of a session",
        );
    }
    let found = format!("idle_session_timeout {:?}", survey.idle);
    if survey.check.is_zero() {
        return finding(
            Level::Warning,
            "timeouts",
            format!("{found}; client_connection_check_interval is 0: dead waiters stay in line"),
            "let nothing between here and the server change the settings of a session",
        );
    }
    good("timeouts", format!("{found}; waiting clients are looked for every {:?}", survey.check))
}

fn keepalives(keepalive: Option<Keepalive>) -> Finding {
    let Some(keepalive) = keepalive else {
        return good("keep-alives", "none over a socket file, which ends with its process".into());
    };
    let (idle, gives_up) = (keepalive.idle, keepalive.gives_up());
    let found = format!("after {idle:?} of silence; the server gives up after {gives_up:?}");
    match !idle.is_zero() && gives_up <= SILENCE_MAX {
        true => good("keep-alives", found),
        false => finding(
            Level::Warning,
            "keep-alives",
            format!("{found}: it finds late that a waiting client is gone without a word"),
            "see whether the server's system takes tcp_keepalives_idle and its like",
        ),
    }
}

fn guard(set: Option<Duration>, longest_ms: i64, up_ms: i64) -> Finding {
    let longest = Duration::from_millis(longest_ms.max(0) as u64);
    let guard = set.unwrap_or(longest);
    let up = Duration::from_millis(up_ms.max(0) as u64);
    let found = format!("claims wait {guard:?} after a restart; the server is up for {up:.0?}");
    if guard >= longest {
        return good("restart", found);
    }
    finding(
        Level::Warning,
        "restart",
        format!("{found}; ttls of {longest:?} are in use"),
        "raise `guard_ms` to the longest ttl, or rely on fences, which stay in order",
    )
}

fn collided(names: Option<String>) -> Finding {
    match names {
        None => good("collisions", "no two names in use have the same key".into()),
        Some(names) => finding(
            Level::Warning,
            "collisions",
            format!("these names have the same key, and wait for each other: {names}"),
            "rename one of them, or use `keys=sha256`",
        ),
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
    fn what_weakens_a_promise_is_a_warning_and_what_breaks_it_is_bad() {
        assert_eq!(primary(true).level, Level::Bad);
        assert_eq!(disk("off").level, Level::Bad);
        assert_eq!(connections(90, 100).level, Level::Warning);
        assert_eq!(locks(90, 100).level, Level::Warning);
        assert_eq!(guard(Some(Duration::ZERO), 30_000, 1).level, Level::Warning);
        assert_eq!(guard(None, 30_000, 1).level, Level::Good);
        assert_eq!(collided(Some("a, b".into())).level, Level::Warning);
        assert_eq!(proxy(false).level, Level::Bad);
    }

    #[test]
    fn what_a_session_says_of_its_silence_is_judged() {
        let secs = Duration::from_secs;
        let survey = |idle, check| Survey { own: true, idle, check, keepalive: None };
        assert_eq!(timeouts(&survey(secs(33), secs(1))).level, Level::Good);
        assert_eq!(timeouts(&survey(secs(33), secs(0))).level, Level::Warning);
        assert_eq!(timeouts(&survey(secs(0), secs(1))).level, Level::Bad);
        let level = |idle, timeout| {
            keepalives(Some(Keepalive::new(secs(idle), secs(3), 3, secs(timeout)))).level
        };
        assert_eq!(keepalives(None).level, Level::Good);
        assert_eq!((level(6, 15), level(6, 0)), (Level::Good, Level::Good));
        assert_eq!((level(7200, 0), level(0, 15)), (Level::Warning, Level::Warning));
    }
}
