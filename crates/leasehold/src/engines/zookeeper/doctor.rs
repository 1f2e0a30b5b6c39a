//! A first look at a store, and a long one with the eyes of somebody who needs the promises kept.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::engine::kit::address::Host;
use crate::engine::{Engine as _, Finding, Level};
use crate::error::{Error, Result};
use crate::rule::claim::{Claim, ClaimKey, Holder, Mode, Note, Token, Ttl};
use crate::rule::name::Name;

use super::ZooKeeper;
use super::failure;
use super::nodes::Layout;
use super::pool::{Pool, timeout_for};
use super::read::{MOMENT, make, make_root};
use super::session::Session;
use super::settings::Servers;
use super::wire::{In, Request, Sort, code};

/// How far the servers' wall clocks may be off before it confuses people.
const CLOCK_MAX: Duration = Duration::from_secs(5);

/// Opens a session, and finds or makes the store's node; returns its id.
pub(super) async fn greet(pool: &Pool, layout: &Layout) -> Result<u128> {
    let session = pool.any().await?;
    let (login, store) = (pool.servers().login.is_some(), &pool.servers().store);
    let path = layout.own("");
    if let Some(id) = read_id(&session, &path, store).await? {
        return Ok(id);
    }
    make_root(&session, &layout.ancestors(), login, store).await?;
    let id = format!("{:032x}", rand::random::<u128>()).into_bytes();
    make(&session, path.clone(), Sort::Persistent, id, login, store).await?;
    make(&session, layout.own(MOMENT), Sort::Persistent, Vec::new(), login, store).await?;
    read_id(&session, &path, store).await?.ok_or_else(|| failure::refusal(code::NO_NODE, store))
}

async fn read_id(session: &Session, path: &str, store: &str) -> Result<Option<u128>> {
    let reply = session.ask(Request::GetData { path: path.to_owned() }).await?;
    match reply.code {
        code::OK => {
            let data = In(&reply.body).bytes().map_err(|odd| failure::odd(odd, store))?;
            let text = std::str::from_utf8(data).unwrap_or_default();
            u128::from_str_radix(text, 16).map(Some).map_err(|_| Error::Store {
                store: store.to_owned(),
                cause: format!("`{path}` is not what leasehold writes there"),
                transient: false,
            })
        }
        code::NO_NODE => Ok(None),
        error => Err(failure::refusal(error, store)),
    }
}

fn finding(level: Level, subject: &'static str, found: impl Into<String>, advice: &str) -> Finding {
    Finding { level, subject, found: found.into(), advice: advice.to_owned() }
}

pub(super) async fn examine(store: &ZooKeeper) -> Result<Vec<Finding>> {
    let servers = store.inner.pool.servers();
    let mut findings = members(servers).await;
    findings.extend(timeouts(store).await?);
    findings.push(clock(store).await?);
    findings.push(access(servers));
    findings.push(rights(store).await);
    Ok(findings)
}

/// What a server says of itself.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    version: (u32, u32, u32),
    mode: String,
}

impl Said {
    fn read(text: &str) -> Option<Said> {
        let line = |begin: &str| text.lines().find_map(|line| line.strip_prefix(begin));
        let version = line("Zookeeper version: ")?;
        let mut numbers = version.split(['.', '-', ',']).map(|part| part.parse::<u32>());
        let mut next = || numbers.next().and_then(std::result::Result::ok);
        let version = (next()?, next()?, next().unwrap_or(0));
        Some(Said { version, mode: line("Mode: ")?.to_owned() })
    }
}

async fn ask_srvr(servers: &Servers, host: &Host) -> std::io::Result<String> {
    let talk = async {
        let mut stream = TcpStream::connect((host.name.as_str(), host.port)).await?;
        let mut text = String::new();
        match &servers.tls {
            None => {
                stream.write_all(b"srvr").await?;
                stream.read_to_string(&mut text).await?;
            }
            Some(tls) => {
                let mut stream = tls.connect(&host.name, stream).await?;
                stream.write_all(b"srvr").await?;
                // Servers hang up without the farewell of TLS.
                let mut bytes = Vec::new();
                drop(stream.read_to_end(&mut bytes).await);
                text = String::from_utf8_lossy(&bytes).into_owned();
            }
        }
        Ok(text)
    };
    let timeout = tokio::time::timeout(servers.answer, talk);
    timeout.await.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
}

async fn members(servers: &Servers) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (mut modes, mut silent) = (Vec::new(), Vec::new());
    for host in &servers.hosts {
        let said = ask_srvr(servers, host).await.ok().and_then(|text| Said::read(&text));
        let Some(Said { version, mode }) = said else {
            let advice = "start it, or allow `srvr` in its 4lw.commands.whitelist";
            let found = format!("{host} does not say how it is");
            findings.push(finding(Level::Warning, "server", found, advice));
            silent.push(host.to_string());
            continue;
        };
        let (major, minor, patch) = version;
        let found = format!("{host}: {major}.{minor}.{patch}, {mode}");
        findings.push(match trouble(version) {
            Some((level, advice)) => finding(level, "server", found, advice),
            None => finding(Level::Good, "server", found, ""),
        });
        modes.push(mode);
    }
    findings.push(ensemble(&modes, &silent));
    findings
}

/// What is known to be wrong with a version, as far as it concerns locks.
fn trouble(version: (u32, u32, u32)) -> Option<(Level, &'static str)> {
    if version < (3, 6, 0) {
        let advice = "3.6 or later is needed: it cannot watch all that is below a node";
        return Some((Level::Bad, advice));
    }
    if version < (3, 9, 3) {
        let advice = "a follower that changes its leader may keep what the others never agreed on \
                      (ZOOKEEPER-4712): use 3.9.3 or later";
        return Some((Level::Warning, advice));
    }
    None
}

/// What the servers of the url are together: how those are that answered, and which did not.
fn ensemble(modes: &[String], silent: &[String]) -> Finding {
    let leads = modes.iter().filter(|mode| *mode == "leader").count();
    let named = modes.len() + silent.len();
    let mut found = format!("{} of {named} servers answered: {}", modes.len(), modes.join(", "));
    if !silent.is_empty() {
        found.push_str(&format!("; not {}", silent.join(", ")));
    }
    match () {
        () if modes.iter().any(|mode| mode == "standalone") => finding(
            Level::Warning,
            "ensemble",
            found,
            "one server alone: nobody can lock while it is down; run three",
        ),
        () if leads > 1 => finding(
            Level::Bad,
            "ensemble",
            found,
            "the url names servers of different ensembles: each grants the same lock",
        ),
        () if named < 3 => finding(
            Level::Warning,
            "ensemble",
            found,
            "name all servers in the url, so that the others are tried when one is down",
        ),
        () if !silent.is_empty() => finding(
            Level::Warning,
            "ensemble",
            found,
            "start what is down: with one more gone there may be no majority, and nobody can lock",
        ),
        () => finding(Level::Good, "ensemble", found, ""),
    }
}

/// The shortest and the longest session that the servers grant.
async fn timeouts(store: &ZooKeeper) -> Result<Vec<Finding>> {
    let servers = store.inner.pool.servers();
    let shortest = Session::open(servers, Duration::from_millis(1), None).await?;
    let longest = Session::open(servers, Duration::from_millis(i32::MAX as u64), None).await?;
    let (min, max) = (shortest.timeout(), longest.timeout());
    shortest.closed().await;
    longest.closed().await;
    let needed = timeout_for(Ttl::DEFAULT.get());
    let longest = match max >= needed {
        true => finding(Level::Good, "longest session", format!("{max:?}"), ""),
        false => finding(
            Level::Warning,
            "longest session",
            format!("{max:?}"),
            "leases last less than the default ttl without contact: raise maxSessionTimeout to \
             46 s or more",
        ),
    };
    let shortest = match min <= Duration::from_secs(5) {
        true => finding(Level::Good, "shortest session", format!("{min:?}"), ""),
        false => finding(
            Level::Warning,
            "shortest session",
            format!("{min:?}"),
            "locks of dead holders are free after that at the earliest: lower minSessionTimeout",
        ),
    };
    Ok(vec![shortest, longest])
}

async fn clock(store: &ZooKeeper) -> Result<Finding> {
    let inner = &store.inner;
    let session = inner.pool.any().await?;
    let path = inner.layout.own(&format!("clock-{:016x}", rand::random::<u64>()));
    let (data, acl) = (Vec::new(), super::read::shared_acl(inner.has_login()));
    let create = Request::Create { path: path.clone(), data, acl, sort: Sort::Ephemeral };
    let reply = session.ask(create).await?;
    if reply.code != code::OK {
        return Err(inner.refusal(reply.code));
    }
    let mut body = In(&reply.body);
    let born = body.text().and_then(|_| body.stat()).map_err(|odd| inner.odd(odd))?.born_ms;
    session.ask(Request::Delete { path }).await?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let off = Duration::from_millis(u64::try_from(born).unwrap_or(0)).abs_diff(now);
    let found = format!("{off:.1?} apart");
    Ok(match off <= CLOCK_MAX {
        true => finding(Level::Good, "clock", found, ""),
        false => finding(
            Level::Warning,
            "clock",
            found,
            "no promise depends on it, but times shown to people do: run a time service",
        ),
    })
}

fn access(servers: &Servers) -> Finding {
    match (&servers.login, &servers.tls) {
        (Some(_), None) => finding(
            Level::Warning,
            "access",
            "a password without TLS",
            "use `zks:`, or anybody on the network can read it",
        ),
        (Some(_), Some(_)) => finding(Level::Good, "access", "a user of its own, over TLS", ""),
        (None, _) => finding(
            Level::Warning,
            "access",
            "open: every client that reaches the servers may delete any lock",
            "put USER:PASSWORD into the url, and the lines belong to that user",
        ),
    }
}

/// Takes and gives back a lock, and says how long that took.
async fn rights(store: &ZooKeeper) -> Finding {
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
        store.claim(&claim).await?;
        store.release(std::slice::from_ref(&claim.key)).await?;
        Ok::<Duration, Error>(begun.elapsed())
    };
    match probe.await {
        Ok(took) => finding(Level::Good, "rights", format!("a lock took {took:.1?}"), ""),
        Err(error) => finding(
            Level::Bad,
            "rights",
            error.to_string(),
            "docs/engines/zookeeper.md has the rights that are needed",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_is_understood() {
        let text =
            "Zookeeper version: 3.8.0-${mvngit.commit.id}, built on 2022-11-18\nMode: leader\n";
        let said = Said::read(text).expect("it says so");
        assert_eq!(said, Said { version: (3, 8, 0), mode: "leader".into() });
        assert_eq!(Said::read("srvr is not executed because it is not in the whitelist."), None);
        let level = |version| trouble(version).map(|(level, _)| level);
        assert_eq!(level((3, 5, 10)), Some(Level::Bad));
        assert_eq!(level((3, 8, 0)), Some(Level::Warning));
        assert_eq!(level((3, 9, 3)), None);
    }
}
