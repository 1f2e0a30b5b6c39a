//! Looking at the cluster: once when the store is opened, and thoroughly when asked to.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use crate::engine::{Engine, Finding, Level};
use crate::error::{Error, Result};
use crate::rule::claim::{Claim, ClaimKey, Holder, Mode, Note, Token, Ttl};
use crate::rule::name::Name;

use super::Etcd;
use super::Inner;
use super::date;
use super::keys::Layout;
use super::link::Links;
use super::wire::{AlarmList, Compare, Empty, GrantRequest, LeaseRequest, LeaseResponse};
use super::wire::{MemberList, RangeRequest, RangeResponse, StatusResponse, TxnRequest, put};

/// The oldest server whose transactions can compare ranges and hold transactions.
const OLDEST: Version = Version(3, 3, 0);
/// A database beyond this is near the usual quota of two gigabytes.
const DB_BYTES_MANY: i64 = 1_600 << 20;
/// How far the members' wall clocks may be off before it confuses people.
const CLOCK_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32, u32);

impl Version {
    fn parse(text: &str) -> Self {
        let mut parts = text.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        Self(next(), next(), next())
    }
}

/// A bug that concerns locks, and the first versions of each series without it.
struct Bug {
    fixed: &'static [Version],
    level: Level,
    what: &'static str,
}

const BUGS: &[Bug] = &[
    Bug {
        fixed: &[Version(3, 4, 0), Version(3, 5, 3)],
        level: Level::Bad,
        what: "members may come to disagree about the data after a crash",
    },
    Bug {
        fixed: &[Version(3, 4, 31), Version(3, 5, 13)],
        level: Level::Warning,
        what: "a leader that was replaced may end leases that are being renewed",
    },
    Bug {
        fixed: &[Version(3, 4, 31), Version(3, 5, 13)],
        level: Level::Warning,
        what: "a watch may miss events after a compaction; heartbeats repair that",
    },
    Bug {
        fixed: &[Version(3, 4, 38), Version(3, 5, 23), Version(3, 6, 5)],
        level: Level::Warning,
        what: "renewing a lease that was ended may be acknowledged; each claim is looked at again",
    },
];

impl Bug {
    fn is_in(&self, version: Version) -> bool {
        let same_series = |fixed: &&Version| (fixed.0, fixed.1) == (version.0, version.1);
        match self.fixed.iter().find(same_series) {
            Some(fixed) => version < *fixed,
            None => self.fixed.iter().all(|fixed| version < *fixed),
        }
    }
}

/// Refuses servers that cannot keep the promises; returns the store's id.
pub(super) async fn greet(links: &Links, layout: &Layout) -> Result<u128> {
    let status: StatusResponse = links.ask("/etcdserverpb.Maintenance/Status", &Empty {}).await?;
    if Version::parse(&status.version) < OLDEST {
        return Err(Error::Unsupported {
            engine: "etcd",
            what: "work on a server before version 3.3",
            advice: "update the server",
        });
    }
    let key = layout.own("store");
    let read = RangeRequest::one(&key);
    let range: RangeResponse = links.ask("/etcdserverpb.KV/Range", &read).await?;
    let mut id = range.kvs.into_iter().next().map(|kv| kv.value);
    if id.is_none() {
        let fresh = format!("{:032x}", rand::random::<u128>()).into_bytes();
        let request = TxnRequest {
            compare: vec![Compare::created(&key, 0)],
            success: vec![put(&key, &fresh, 0)],
            failure: vec![read.op()],
        };
        let answer = links.txn(&request).await.map_err(|status| links.translate(&status))?;
        let known = answer.ranges().next().and_then(|range| range.kvs.into_iter().next());
        id = Some(known.map_or(fresh, |kv| kv.value));
    }
    let id = id.and_then(|id| String::from_utf8(id).ok());
    id.and_then(|id| u128::from_str_radix(&id, 16).ok()).ok_or_else(|| Error::Store {
        store: links.store.clone(),
        cause: "the key `leasehold:store` should hold the store's id, and holds something else"
            .into(),
        transient: false,
    })
}

/// Everything worth knowing about the cluster.
pub(super) async fn examine(etcd: &Etcd) -> Result<Vec<Finding>> {
    let inner = &*etcd.inner;
    let mut findings = Vec::new();
    let mut leaders = Vec::new();
    for member in 0..inner.links.members() {
        let path = "/etcdserverpb.Maintenance/Status";
        match inner.links.ask_member::<_, StatusResponse>(member, path, &Empty {}).await {
            Ok(status) => {
                let of_it = versions(&status).into_iter().chain(state(&status));
                findings.extend(of_it.map(|finding| match inner.links.members() {
                    1 => finding,
                    _ => of_member(member, finding),
                }));
                leaders.push(status.leader);
            }
            Err(status) => findings.push(finding(
                Level::Warning,
                "member",
                format!("number {} of the url does not answer: {:?}", member + 1, status.code()),
                "see to it, or take it out of the url",
            )),
        }
    }
    leaders.sort_unstable();
    leaders.dedup();
    findings.push(match leaders.as_slice() {
        [0] | [] => finding(Level::Bad, "leader", "none".into(), "see the servers' logs"),
        [leader] => finding(Level::Good, "leader", format!("{leader:x}"), ""),
        _ => finding(
            Level::Warning,
            "leader",
            "members name different ones".into(),
            "an election is going on, or the url names members of two clusters",
        ),
    });
    findings.push(ensemble(inner).await?);
    findings.extend(alarms(inner).await?);
    findings.push(clock(&inner.links).await);
    // Where no lease is granted, the rights below say why.
    findings.extend(shortest_lease(inner).await.ok());
    findings.push(rights(etcd).await);
    Ok(findings)
}

fn finding(level: Level, subject: &'static str, found: String, advice: &str) -> Finding {
    Finding { level, subject, found, advice: advice.into() }
}

/// A finding about one of several members.
fn of_member(member: usize, finding: Finding) -> Finding {
    let found = format!("number {} of the url: {}", member + 1, finding.found);
    Finding { found, ..finding }
}

/// The first version of each series without any of these bugs, where it had one of them.
fn update<'a>(bugs: impl Iterator<Item = &'a Bug>) -> String {
    let mut fixed: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    for Version(major, minor, patch) in bugs.flat_map(|bug| bug.fixed) {
        let first = fixed.entry((*major, *minor)).or_default();
        *first = (*first).max(*patch);
    }
    let fixed = fixed.iter().map(|((major, minor), patch)| format!("{major}.{minor}.{patch}"));
    format!("update the server to {} or later", fixed.collect::<Vec<_>>().join(", "))
}

fn versions(status: &StatusResponse) -> Vec<Finding> {
    let version = Version::parse(&status.version);
    let bugs = || BUGS.iter().filter(|bug| bug.is_in(version));
    // One for all of them, so that it is followed once.
    let advice = update(bugs());
    let found = |bug: &Bug| format!("{}: {}", status.version, bug.what);
    let mut findings: Vec<Finding> =
        bugs().map(|bug| finding(bug.level, "version", found(bug), &advice)).collect();
    if findings.is_empty() {
        findings.push(finding(Level::Good, "version", status.version.clone(), ""));
    }
    findings
}

fn state(status: &StatusResponse) -> Vec<Finding> {
    let mut findings = Vec::new();
    if status.is_learner {
        findings.push(finding(
            Level::Warning,
            "member",
            "a learner, which answers no requests".into(),
            "take it out of the url until it votes",
        ));
    }
    for error in &status.errors {
        let advice = "see `etcdctl alarm list` and the servers' logs";
        findings.push(finding(Level::Bad, "member", error.clone(), advice));
    }
    let found = format!("{} MiB", status.db_size >> 20);
    findings.push(match status.db_size > DB_BYTES_MANY {
        true => finding(
            Level::Warning,
            "database",
            found,
            "compact and defragment it, or raise its quota: a full one grants no locks",
        ),
        false => finding(Level::Good, "database", found, ""),
    });
    findings
}

async fn ensemble(inner: &Inner) -> Result<Finding> {
    let list: MemberList = inner.links.ask("/etcdserverpb.Cluster/MemberList", &Empty {}).await?;
    let voters = list.members.iter().filter(|member| !member.is_learner).count();
    let may_fail = voters.saturating_sub(1) / 2;
    let found = format!("{voters} that vote, of which {may_fail} may fail");
    Ok(match (voters, voters % 2) {
        (..=2, _) => finding(
            Level::Warning,
            "members",
            found,
            "a cluster of three goes on when one of them fails",
        ),
        (_, 0) => finding(
            Level::Warning,
            "members",
            found,
            "an even number fails as soon as one less does: add or remove one",
        ),
        _ => finding(Level::Good, "members", found, ""),
    })
}

async fn alarms(inner: &Inner) -> Result<Vec<Finding>> {
    let list: AlarmList = inner.links.ask("/etcdserverpb.Maintenance/Alarm", &Empty {}).await?;
    let told = list.alarms.iter().map(|alarm| {
        let (found, advice) = match alarm.alarm {
            1 => ("no space", "compact, defragment, then `etcdctl alarm disarm`"),
            2 => ("corrupt data", "replace the member, see etcd's guide to data corruption"),
            _ => ("an unknown one", "see `etcdctl alarm list`"),
        };
        finding(Level::Bad, "alarm", format!("{found} on {:x}", alarm.member), advice)
    });
    Ok(told.collect())
}

/// Which of the members' wall clocks is farthest from ours.
async fn clock(links: &Links) -> Finding {
    let mut worst: Option<(Duration, usize)> = None;
    for member in 0..links.members() {
        let before = SystemTime::now();
        if let Some(date) = links.date(member).await {
            let apart = date::apart(date, before, SystemTime::now());
            worst = worst.max(Some((apart, member)));
        }
    }
    let told = |apart: Duration| format!("{:.0} s apart", apart.as_secs_f64());
    match worst {
        None => finding(
            Level::Good,
            "clock",
            "not told: no plain HTTP where the url points to".into(),
            "",
        ),
        Some((apart, _)) if apart < Duration::from_secs(1) => {
            finding(Level::Good, "clock", "less than 1 s apart".into(), "")
        }
        Some((apart, _)) if apart <= CLOCK_MAX => finding(Level::Good, "clock", told(apart), ""),
        Some((apart, member)) => finding(
            Level::Warning,
            "clock",
            format!("number {} of the url is {}", member + 1, told(apart)),
            "no promise depends on it, but times shown to people do: run a time service",
        ),
    }
}

/// How short a lease may be: what a dead holder's lock takes at least to be free.
async fn shortest_lease(inner: &Inner) -> Result<Finding> {
    let id = rand::random_range(1..i64::MAX);
    let request = GrantRequest { ttl: 1, id };
    let granted: LeaseResponse =
        inner.links.ask("/etcdserverpb.Lease/LeaseGrant", &request).await?;
    let path = "/etcdserverpb.Lease/LeaseRevoke";
    let _revoked: Empty = inner.links.ask(path, &LeaseRequest::of(id)).await?;
    let found = format!("{} s", granted.ttl);
    Ok(match granted.ttl {
        ..=5 => finding(Level::Good, "shortest lease", found, ""),
        _ => finding(
            Level::Warning,
            "shortest lease",
            found,
            "locks of dead holders are free after that at the earliest: lower the servers' \
             --election-timeout",
        ),
    })
}

/// Takes and gives back a lock, and says how long that took.
async fn rights(etcd: &Etcd) -> Finding {
    let probe = async {
        let name = Name::new(format!("leasehold:doctor:{:016x}", rand::random::<u64>()))?;
        let claim = Claim {
            key: ClaimKey { name, token: Token::random() },
            mode: Mode::Exclusive,
            holder: Holder::fresh(),
            note: Note::default(),
            ttl: Ttl::DEFAULT.get(),
            patience: Ttl::DEFAULT.patience(),
            join: true,
        };
        let begun = Instant::now();
        etcd.claim(&claim).await?;
        etcd.release(std::slice::from_ref(&claim.key)).await?;
        Ok::<Duration, Error>(begun.elapsed())
    };
    match probe.await {
        Ok(took) => finding(Level::Good, "rights", format!("a lock took {took:.1?}"), ""),
        Err(error) => finding(
            Level::Bad,
            "rights",
            error.to_string(),
            "docs/engines/etcd.md has the rights that are needed",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bug_is_in_every_series_until_it_was_fixed_there() {
        let bug = &BUGS[3];
        for (version, has) in [
            ("3.3.27", true),
            ("3.4.23", true),
            ("3.4.38", false),
            ("3.5.22", true),
            ("3.5.23", false),
            ("3.6.4", true),
            ("3.6.5", false),
            ("3.7.0", false),
            ("4.0.0-rc.1", false),
        ] {
            assert_eq!(bug.is_in(Version::parse(version)), has, "{version}");
        }
        assert!(BUGS[0].is_in(Version(3, 5, 2)) && !BUGS[0].is_in(Version(3, 4, 23)));
    }

    #[test]
    fn the_bug_that_ends_leases_that_live_is_named_until_it_was_fixed() {
        for (version, has) in [
            ("3.3.27", true),
            ("3.4.23", true),
            ("3.4.30", true),
            ("3.4.31", false),
            ("3.5.12", true),
            ("3.5.13", false),
            ("3.6.0", false),
        ] {
            let status = StatusResponse { version: version.into(), ..StatusResponse::default() };
            let named = versions(&status).into_iter().any(|finding| {
                finding.level == Level::Warning
                    && finding.found.contains("may end leases that are being renewed")
                    && finding.advice.starts_with("update the server to 3.4.38, 3.5.23, 3.6.5")
            });
            assert_eq!(named, has, "{version}");
        }
    }

    #[test]
    fn all_bugs_of_a_version_have_one_advice_and_findings_name_their_member() {
        let status = |version: &str| StatusResponse {
            version: version.to_owned(),
            ..StatusResponse::default()
        };
        for (version, bugs, advice) in [
            ("3.3.27", 4, "update the server to 3.4.38, 3.5.23, 3.6.5 or later"),
            ("3.4.23", 3, "update the server to 3.4.38, 3.5.23, 3.6.5 or later"),
            ("3.5.2", 4, "update the server to 3.4.38, 3.5.23, 3.6.5 or later"),
            ("3.6.5", 1, ""),
        ] {
            let findings = versions(&status(version));
            assert_eq!(findings.len(), bugs, "{version}: {findings:?}");
            assert!(findings.iter().all(|finding| finding.advice == advice), "{findings:?}");
        }
        let named = versions(&status("3.6.5")).remove(0);
        assert_eq!(of_member(1, named).found, "number 2 of the url: 3.6.5");
    }
}
