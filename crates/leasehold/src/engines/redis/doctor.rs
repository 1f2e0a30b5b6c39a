//! Looking at the servers: once when the store is opened, and thoroughly when asked to.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Value};

use crate::clock::remote::{ClockTrouble, Reading, RemoteClock, STILL_MIN};
use crate::clock::{Clock, SystemClock};
use crate::engine::{Administer, Engine, Eviction, Finding, Level, Query};
use crate::error::{Config, Error, Result};
use crate::rule::claim::{Claim, ClaimKey, Holder, Mode, Note, Renewal, Standing, Token, Ttl};
use crate::rule::name::Name;

use super::failure;
use super::keys::Layout;
use super::link::Links;
use super::strangers;
use super::{Odd, Redis};

/// The oldest server whose scripts can say that they need no memory.
const MAJOR_MIN: u32 = 7;
/// Beyond this a server's clock is worth a word: fences and the hour in a log would surprise.
const CLOCK_OFF_MAX: Duration = Duration::from_secs(1);

/// What a server says of itself.
pub(super) struct About(HashMap<String, String>);

impl About {
    fn parse(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.trim_end().split_once(':'));
        Self(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    /// An answer to INFO.
    pub(super) fn of(answer: Value) -> Result<Self, Odd> {
        match answer {
            Value::BulkString(text) => Ok(Self::parse(&String::from_utf8_lossy(&text))),
            Value::VerbatimString { text, .. } => Ok(Self::parse(&text)),
            _ => Err(Odd),
        }
    }

    fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    fn number(&self, key: &str) -> u64 {
        self.get(key).parse().unwrap_or(0)
    }

    fn major(&self) -> u32 {
        self.get("redis_version").split('.').next().and_then(|part| part.parse().ok()).unwrap_or(0)
    }

    /// By what the server chooses what to evict.
    pub(super) fn policy(&self) -> &str {
        self.get("maxmemory_policy")
    }

    /// Whether the server may evict a lock: every lock's keys have an expiry, so a policy that
    /// evicts only such keys evicts locks first.
    pub(super) fn evicts_locks(&self) -> bool {
        ["allkeys-", "volatile-"].iter().any(|begin| self.policy().starts_with(begin))
    }
}

async fn about(server: &mut MultiplexedConnection, links: &Links) -> Result<About> {
    let told = redis::cmd("INFO").query_async::<String>(server).await;
    told.map(|text| About::parse(&text)).map_err(|error| links.translate(&error))
}

/// Refuses a server that cannot keep the promises.
pub(super) fn accept(about: &About, allow_eviction: bool) -> Result<()> {
    if about.major() < MAJOR_MIN {
        return Err(Error::Unsupported {
            engine: "redis",
            what: "work on a server before version 7.0",
            advice: "update the server",
        });
    }
    if about.evicts_locks() && !allow_eviction {
        return Err(Error::Config(Config::Option {
            option: "allow_eviction".into(),
            reason: format!(
                "is needed: the server's maxmemory-policy is `{}`, which may evict locks that are \
                 held; set `noeviction`, or add `allow_eviction=yes`",
                about.policy()
            ),
        }));
    }
    Ok(())
}

pub(super) async fn about_each(links: &Links) -> Result<Vec<About>> {
    if !links.shape.is_cluster() {
        let answer = links.run(&redis::cmd("INFO")).await?;
        return Ok(vec![About::of(answer).unwrap_or_else(|Odd| About::parse(""))]);
    }
    let servers = links.shape.connect_each().await;
    let mut all = Vec::new();
    for mut server in servers.map_err(|error| links.translate(&error))? {
        all.push(about(&mut server, links).await?);
    }
    Ok(all)
}

/// Refuses servers that cannot keep the promises; returns the store's id, and what its clock
/// shows, if it has one clock.
pub(super) async fn greet(
    links: &Links,
    layout: &Layout,
    allow_eviction: bool,
) -> Result<(u128, Option<Reading>)> {
    let sent = SystemClock.now();
    let servers = about_each(links).await?;
    let received = SystemClock.now();
    for about in &servers {
        accept(about, allow_eviction)?;
    }
    let reading = match &servers[..] {
        [one] if !layout.cluster => {
            let time = one.number("server_time_usec");
            (time > 0).then_some(Reading { sent, received, time })
        }
        _ => None,
    };
    let mut offer = redis::cmd("SET");
    let fresh = format!("{:032x}", rand::random::<u128>());
    offer.arg(&layout.store).arg(&fresh).arg("NX").arg("GET");
    let id = match offered(links, &offer, &layout.store).await? {
        Value::BulkString(id) => String::from_utf8_lossy(&id).into_owned(),
        _ => fresh,
    };
    let id = u128::from_str_radix(&id, 16).map_err(|_| Error::Store {
        store: layout.store.clone(),
        cause: "this key should hold the store's id, and holds something else".into(),
        transient: false,
    })?;
    Ok((id, reading))
}

/// The store's id. A server that has no room to write any more still tells one that it has, so
/// that what is held there can be seen and given back.
async fn offered(links: &Links, offer: &redis::Cmd, key: &str) -> Result<Value> {
    let full = match links.attempt(offer).await {
        Err(error) if failure::is_full(&error) => links.translate(&error),
        answer => return answer.map_err(|error| links.translate(&error)),
    };
    let mut question = redis::cmd("GET");
    match links.run(question.arg(key)).await? {
        Value::Nil => Err(full),
        id => Ok(id),
    }
}

/// Everything worth knowing about the servers.
pub(super) async fn examine(redis: &Redis) -> Result<Vec<Finding>> {
    let inner = &*redis.inner;
    let mut findings = Vec::new();
    let servers = inner.links.shape.connect_each().await;
    for mut server in servers.map_err(|error| inner.links.translate(&error))? {
        let about = about(&mut server, &inner.links).await?;
        findings.push(version(&about));
        findings.push(eviction(&about));
        // A user who may not ask is not made to where there is nothing to ask about.
        let flushes = match about.number("aof_enabled") {
            0 => None,
            _ => flushing_question().query_async::<Value>(&mut server).await.ok(),
        };
        findings.push(persistence(&about, Flushes::of(flushes)));
        findings.push(replicas(&about, inner.wait_for.is_some()));
        findings.push(inner.understood(clock(&mut server).await)?);
        findings.extend(strangers::look(&mut server, inner.layout.prefix()).await);
    }
    findings.extend(inner.concern_watch.last().iter().map(Finding::of_server_alert));
    findings.push(rights(redis).await);
    Ok(findings)
}

pub(super) fn finding(level: Level, subject: &'static str, found: String, advice: &str) -> Finding {
    Finding { level, subject, found, advice: advice.into() }
}

pub(super) fn version(about: &About) -> Finding {
    // Valkey tells the version of Redis that it is compatible with, too.
    let (valkey, redis) = (about.get("valkey_version"), about.get("redis_version"));
    let product = if valkey.is_empty() { redis.to_owned() } else { format!("Valkey {valkey}") };
    let mode = ["redis_mode", "server_mode"].map(|key| about.get(key)).concat();
    let found = format!("{product} ({mode})");
    match about.major() < MAJOR_MIN {
        // Who was connected before the server was put back to it.
        true => finding(Level::Bad, "version", found, "update the server to 7.0 or later"),
        false => finding(Level::Good, "version", found, ""),
    }
}

pub(super) fn eviction(about: &About) -> Finding {
    let found = format!("{}, maxmemory {}", about.policy(), about.get("maxmemory_human"));
    if about.evicts_locks() {
        let advice = "locks that are held may be evicted: set `maxmemory-policy noeviction`";
        return finding(Level::Bad, "eviction", found, advice);
    }
    finding(Level::Good, "eviction", found, "")
}

/// When a server's append-only file is flushed, as far as it says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Flushes {
    /// There is none.
    Nothing,
    /// Before every answer.
    Always,
    /// Otherwise, in the server's own words.
    Later(String),
    /// The server does not tell this user.
    Untold,
}

/// What to ask a server about its append-only file.
pub(super) fn flushing_question() -> redis::Cmd {
    let mut question = redis::cmd("CONFIG");
    question.arg("GET").arg("appendonly").arg("appendfsync").arg("no-appendfsync-on-rewrite");
    question
}

impl Flushes {
    /// What the answer means; `None` if there was none.
    pub(super) fn of(answer: Option<Value>) -> Self {
        let settings: HashMap<String, String> = answer
            .and_then(|answer| FromRedisValue::from_redis_value(answer).ok())
            .unwrap_or_default();
        let is = |setting: &str, value: &str| settings.get(setting).is_some_and(|is| is == value);
        match settings.get("appendfsync") {
            None => Self::Untold,
            Some(_) if !is("appendonly", "yes") => Self::Nothing,
            Some(when) if when != "always" => Self::Later(format!("appendfsync {when}")),
            Some(_) if !is("no-appendfsync-on-rewrite", "no") => {
                Self::Later("not while it is rewritten".into())
            }
            Some(_) => Self::Always,
        }
    }
}

fn persistence(about: &About, flushes: Flushes) -> Finding {
    if about.number("aof_enabled") == 0 {
        return finding(
            Level::Warning,
            "persistence",
            "nothing, or snapshots".into(),
            "a restart forgets locks that are held; set `appendonly yes` and \
             `appendfsync always`, or check fences where it matters",
        );
    }
    let (found, advice) = match flushes {
        Flushes::Always => {
            let found = "append-only file, flushed before every answer".into();
            return finding(Level::Good, "persistence", found, "");
        }
        Flushes::Later(when) => (
            format!("append-only file, {when}"),
            "a crash may forget the latest grants: set `appendfsync always` and \
             `no-appendfsync-on-rewrite no`, or check fences where it matters",
        ),
        Flushes::Nothing | Flushes::Untold => (
            "append-only file; when it is flushed is not told".into(),
            "with `appendfsync everysec` a crash may forget the last second, with `always` \
             nothing; give the user `+config|get` to have it looked at",
        ),
    };
    finding(Level::Warning, "persistence", found, advice)
}

fn replicas(about: &About, waits: bool) -> Finding {
    let count = about.number("connected_slaves");
    let found = format!("{count} connected");
    if count > 0 && !waits {
        return finding(
            Level::Warning,
            "replicas",
            found,
            "a fail-over may forget the latest grants: add `wait_replicas=1` to narrow that, and \
             check fences where it matters",
        );
    }
    finding(Level::Good, "replicas", found, "")
}

/// Looks at the server's clock twice: whether it runs, and how far it is from this machine's.
async fn clock(server: &mut MultiplexedConnection) -> Result<Finding, Odd> {
    let mut watched = RemoteClock::default();
    let mut trouble = watched.read(show(server).await?);
    tokio::time::sleep(2 * STILL_MIN).await;
    let last = show(server).await?;
    let ours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    trouble = trouble.or(watched.read(last));
    let theirs = Duration::from_micros(last.time);
    Ok(clock_finding(trouble, ours.abs_diff(theirs), theirs > ours))
}

async fn show(server: &mut MultiplexedConnection) -> Result<Reading, Odd> {
    let sent = SystemClock.now();
    let (seconds, micros): (u64, u64) =
        redis::cmd("TIME").query_async(server).await.map_err(|_| Odd)?;
    let time = seconds.saturating_mul(1_000_000).saturating_add(micros);
    Ok(Reading { sent, received: SystemClock.now(), time })
}

fn clock_finding(trouble: Option<ClockTrouble>, off: Duration, ahead: bool) -> Finding {
    if let Some(ClockTrouble::Frozen { .. }) = trouble {
        let advice = "nothing expires on this server: see to its clock";
        return finding(Level::Bad, "clock", "stands still".into(), advice);
    }
    let side = if ahead { "ahead of" } else { "behind" };
    let found = format!("{off:.0?} {side} this machine's");
    if off > CLOCK_OFF_MAX {
        return finding(
            Level::Warning,
            "clock",
            found,
            "a server's clock that is stepped expires locks early or late: keep it in step by NTP",
        );
    }
    finding(Level::Good, "clock", found, "")
}

/// Does everything with a name of its own, to see that nothing is forbidden.
async fn rights(redis: &Redis) -> Finding {
    match try_everything(redis).await {
        Ok(()) => finding(Level::Good, "rights", "all that is needed".into(), ""),
        Err(error) => finding(
            Level::Bad,
            "rights",
            error.to_string(),
            "docs/engines/redis.md has the rights that are needed",
        ),
    }
}

async fn try_everything(redis: &Redis) -> Result<()> {
    let name = Name::new(format!("doctor:{:016x}", rand::random::<u64>()))?;
    let key = ClaimKey { name, token: Token::random() };
    let ttl = Ttl::DEFAULT.get();
    let claim = Claim {
        key: key.clone(),
        mode: Mode::Exclusive,
        holder: Holder::fresh(),
        note: Note::default(),
        ttl,
        patience: ttl,
        join: true,
    };
    redis.claim(&claim).await?;
    let next = ClaimKey { token: Token::random(), ..key.clone() };
    redis.claim(&Claim { key: next.clone(), ..claim.clone() }).await?;
    let renewal = |key: &ClaimKey| Renewal { key: key.clone(), ttl, patience: ttl };
    renewed(redis, &[renewal(&key), renewal(&next)]).await?;
    redis.release(&[key, next.clone()]).await?;
    for mode in [Mode::Exclusive, Mode::Shared] {
        let standing = redis.claim(&Claim { mode, ..claim.clone() }).await?;
        renewed(redis, &[renewal(&claim.key)]).await?;
        redis.inspect(&Query::name(next.name.clone())).await?;
        let fences = match standing {
            Standing::Held { fence, .. } => vec![fence],
            _ => Vec::new(),
        };
        let (name, by, reason) = (next.name.clone(), Holder::fresh(), "a test".into());
        redis.evict(&Eviction { name, fences, unreadable: false, by, reason }).await?;
    }
    try_rarely_used(&redis.inner.links, &redis.inner.layout, &next.name).await
}

async fn renewed(redis: &Redis, renewals: &[Renewal]) -> Result<()> {
    redis.renew(renewals).await?.into_iter().try_for_each(|answer| answer.map(drop))
}

/// What the verbs need only now and then: a count, a clock that fell back, a list of all names.
async fn try_rarely_used(links: &Links, layout: &Layout, name: &Name) -> Result<()> {
    let keys = layout.keys(name)?;
    links.run(redis::cmd("HINCRBY").arg(&layout.totals).arg("acquired").arg(0)).await?;
    links.run(redis::cmd("HGETALL").arg(&layout.totals)).await?;
    links.run(redis::cmd("INCR").arg(keys.lock())).await?;
    links.run(redis::cmd("DEL").arg(keys.lock())).await?;
    if !links.shape.is_cluster() {
        links.run(redis::cmd("SCAN").arg(0).arg("COUNT").arg(1)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flushes(pairs: &[(&str, &str)]) -> Flushes {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let flat = pairs.iter().flat_map(|(key, value)| [text(key), text(value)]);
        Flushes::of(Some(Value::Array(flat.collect())))
    }

    #[test]
    fn f51_only_a_file_that_is_flushed_before_every_answer_is_good() {
        let about = About::parse("aof_enabled:1\r\n");
        let all = |only, fsync, rewrite| {
            flushes(&[
                ("appendonly", only),
                ("appendfsync", fsync),
                ("no-appendfsync-on-rewrite", rewrite),
            ])
        };
        let level = |flushes| persistence(&about, flushes).level;
        assert_eq!(level(all("yes", "always", "no")), Level::Good);
        assert_eq!(level(all("yes", "everysec", "no")), Level::Warning);
        assert_eq!(level(all("yes", "no", "no")), Level::Warning);
        assert_eq!(level(all("yes", "always", "yes")), Level::Warning);
        assert_eq!(level(Flushes::of(None)), Level::Warning, "nobody knows");
        assert_eq!(all("no", "always", "no"), Flushes::Nothing);
        let none = About::parse("aof_enabled:0\r\n");
        assert_eq!(persistence(&none, all("no", "always", "no")).level, Level::Warning);
    }

    #[test]
    fn valkey_is_shown_with_its_own_version_and_mode() {
        let valkey = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.0\r\n\
                      server_mode:cluster\r\n";
        let redis = "redis_version:7.0.15\r\nredis_mode:standalone\r\n";
        let found = |text| version(&About::parse(text)).found;
        assert_eq!(found(valkey), "Valkey 8.1.0 (cluster)");
        assert_eq!(found(redis), "7.0.15 (standalone)");
    }

    #[test]
    fn a_server_before_version_7_is_bad_and_refused() {
        for (text, is_old) in [("6.2.14", true), ("7.0.0", false), ("8.2.1", false), ("", true)] {
            let about = About::parse(&format!("redis_version:{text}\r\nredis_mode:standalone\r\n"));
            let level = if is_old { Level::Bad } else { Level::Good };
            assert_eq!(version(&about).level, level, "{text}");
            assert_eq!(accept(&about, false).is_err(), is_old, "{text}");
        }
    }
}
