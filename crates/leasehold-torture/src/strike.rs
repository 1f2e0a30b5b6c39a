//! Making the faults that a plan names, and taking them back.
//!
//! Each function begins a fault, waits for as long as it lasts, and ends it. An error says why the
//! fault could not be made; the run goes on without it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold_testkit::{AfterLoss, Direction, Group, Proxy, Server, StalledDisk, Worker};

use crate::faults::{Kind, Planned};
use crate::setup::{Servers, Store};

/// Why a fault could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Missed {
    /// The harness could not.
    #[error(transparent)]
    Harness(#[from] leasehold_testkit::Error),
    /// A file could not be used.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The database could not be used.
    #[error(transparent)]
    Database(#[from] rusqlite::Error),
    /// There is nothing to do it to.
    #[error("{0}")]
    Nothing(&'static str),
}

type Result<T> = std::result::Result<T, Missed>;

/// How long a server that is asked for its role may take.
const ASK_MAX: Duration = Duration::from_secs(1);

/// The longest delay of a link: twice the shortest ttl.
const DELAY_MAX_MS: u64 = 4_000;

/// The part of its time for which a link that is to be cut hands on answers late. A renewal that
/// waits for longer than a quarter of its ttl counts as failed.
const LATE_PART: u32 = 8;
/// For so long what was held passes, before the link is cut.
const LATE_PASSES: Duration = Duration::from_millis(30);

/// A slot moves one key at a time; more are not in it.
const MOVED_KEYS_MAX: usize = 200;

/// A cluster that is not healthy changes no members, and a busy one may be slow to move a slot.
const CHANGE_TRIES_MAX: usize = 40;
const CHANGE_PAUSE: Duration = Duration::from_millis(250);

/// The names whose slots move: some for which many wait, and some whose lines are often empty.
const SLOT_NAMES: [&str; 6] = ["m0", "m1", "m2", "m3", "rw", "sem"];

/// A fault of a worker's link, from its begin to its end.
pub async fn link(proxies: &[Proxy], planned: &Planned) -> Result<()> {
    let lasts = Duration::from_millis(planned.lasts_ms);
    for proxy in proxies {
        match planned.kind {
            Kind::LinkCut => proxy.block(Direction::Both),
            Kind::LinkCutToServer => proxy.block(Direction::ToServer),
            Kind::LinkCutToClient => proxy.block(Direction::ToClient),
            Kind::LinkDelay => {
                proxy.delay(Direction::Both, Duration::from_millis(planned.number % DELAY_MAX_MS));
            }
            Kind::LinkReset => proxy.reset_all(),
            Kind::LinkLostReply => proxy.lose_next_reply(AfterLoss::Reset),
            Kind::LinkLateThenCut => proxy.block(Direction::ToClient),
            _ => return Err(Missed::Nothing("it is no fault of a link")),
        }
    }
    let mut rest = lasts;
    if planned.kind == Kind::LinkLateThenCut {
        let late = lasts / LATE_PART;
        tokio::time::sleep(late).await;
        passed(proxies).await?;
        tokio::time::sleep(LATE_PASSES).await;
        proxies.iter().for_each(|proxy| proxy.block(Direction::Both));
        rest = rest.saturating_sub(late + LATE_PASSES);
    }
    tokio::time::sleep(rest).await;
    passed(proxies).await
}

async fn passed(proxies: &[Proxy]) -> Result<()> {
    for proxy in proxies {
        proxy.pass().await?;
    }
    Ok(())
}

/// A pause of a worker, or of its disk.
pub async fn worker(worker: &mut Worker, store: &Store, planned: &Planned) -> Result<()> {
    let lasts = Duration::from_millis(planned.lasts_ms);
    if planned.kind == Kind::WorkerDiskStall {
        let file = store.file().ok_or(Missed::Nothing("the store is no file"))?;
        let folder = file.parent().ok_or(Missed::Nothing("the file has no folder"))?;
        let stalled = StalledDisk::of(worker.pid(), folder)?;
        tokio::time::sleep(lasts).await;
        return Ok(stalled.heal()?);
    }
    worker.stop_process()?;
    tokio::time::sleep(lasts).await;
    Ok(worker.continue_process()?)
}

/// A fault of the store.
pub async fn store(store: &Store, planned: &Planned) -> Result<()> {
    let lasts = Duration::from_millis(planned.lasts_ms);
    match planned.kind {
        Kind::FileLocked | Kind::FileFull | Kind::BellsRemoved => {
            return file(store, planned).await;
        }
        Kind::Compaction if store.file().is_some() => return file(store, planned).await,
        Kind::ClockAhead | Kind::ClockBack => return clock(store, planned).await,
        _ => {}
    }
    let server = target(store, planned)?;
    match planned.kind {
        Kind::ServerPauseShort | Kind::ServerPauseLong | Kind::LeaderPause => {
            server.stop_process()?;
            tokio::time::sleep(lasts).await;
            server.continue_process()?;
        }
        Kind::ServerKill | Kind::LeaderKill => {
            server.kill()?;
            tokio::time::sleep(lasts).await;
            restarted(server).await?;
        }
        Kind::ServerRestart | Kind::PoolerRestart => {
            server.shut_down()?;
            tokio::time::sleep(lasts).await;
            restarted(server).await?;
        }
        Kind::ServerEmpty => _ = server.redis(&["FLUSHALL"])?,
        Kind::ScriptFlush => {
            for server in store.data() {
                server.redis(&["SCRIPT", "FLUSH"])?;
            }
        }
        Kind::SessionsKilled => sessions_killed(store, server)?,
        Kind::NodeEmpty => node_empty(store, lasts).await?,
        Kind::MemberCut => member_cut(store, planned).await?,
        Kind::MemberReplaced if server.name() == "zookeeper" => data_lost(server, lasts).await?,
        Kind::MemberReplaced => member_replaced(store, planned).await?,
        Kind::FailOver => fail_over(store).await?,
        Kind::HandOver => hand_over(store, planned).await?,
        Kind::SlotMove => slot_move(store, planned).await?,
        Kind::Compaction => compaction(server)?,
        Kind::LeaderMove => leader_move(store)?,
        _ => return Err(Missed::Nothing("it is no fault of a store")),
    }
    Ok(())
}

async fn restarted(server: &Server) -> Result<()> {
    server.launch()?;
    Ok(server.wait_ready().await?)
}

/// The server that a fault is about.
fn target<'a>(store: &'a Store, planned: &Planned) -> Result<&'a Server> {
    let none = Missed::Nothing("there is no server");
    if let (Servers::Pooled { pooler, .. }, Kind::PoolerRestart) = (&store.servers, planned.kind) {
        return Ok(pooler);
    }
    if let (Servers::Sentinel(group), Kind::ScriptFlush | Kind::SessionsKilled) =
        (&store.servers, planned.kind)
    {
        return Ok(group.current_master()?);
    }
    let data = store.data();
    let index = planned.number as usize % data.len().max(1);
    let is_leader = matches!(planned.kind, Kind::LeaderKill | Kind::LeaderPause);
    let index = if is_leader { leader(store)? } else { index };
    data.into_iter().nth(index).ok_or(none)
}

/// A fault of a database file.
async fn file(store: &Store, planned: &Planned) -> Result<()> {
    let lasts = Duration::from_millis(planned.lasts_ms);
    let file = store.file().ok_or(Missed::Nothing("the store is no file"))?;
    match planned.kind {
        Kind::FileLocked => {
            let other = rusqlite::Connection::open(&file)?;
            other.busy_timeout(ASK_MAX)?;
            other.execute_batch("BEGIN IMMEDIATE")?;
            tokio::time::sleep(lasts).await;
            other.execute_batch("ROLLBACK")?;
        }
        Kind::FileFull => {
            let filler = file.with_extension("filler");
            fill(&filler)?;
            tokio::time::sleep(lasts).await;
            std::fs::remove_file(&filler)?;
        }
        Kind::BellsRemoved => {
            let bells = file.with_extension("db.bells");
            for entry in std::fs::read_dir(bells)? {
                // One that was removed by its owner meanwhile is as good as removed.
                let _gone = std::fs::remove_file(entry?.path());
            }
        }
        _ => {
            let other = rusqlite::Connection::open(&file)?;
            other.busy_timeout(ASK_MAX)?;
            other.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        }
    }
    Ok(())
}

/// Fills the disk of a file. Only a small disk is filled: the run gives the file one of its own.
fn fill(filler: &std::path::Path) -> Result<()> {
    const SMALL: u64 = 64 << 20;
    let folder = filler.parent().ok_or(Missed::Nothing("the file has no folder"))?;
    let disk = rustix::fs::statvfs(folder).map_err(std::io::Error::from)?;
    if disk.f_blocks * disk.f_frsize > SMALL {
        return Err(Missed::Nothing("its disk is not a small one of its own"));
    }
    let mut file = std::fs::File::create(filler)?;
    let zeros = [0; 4096];
    while file.write_all(&zeros).is_ok() {}
    Ok(())
}

/// A step of a server's clock, and the step back. Other servers keep the right time.
async fn clock(store: &Store, planned: &Planned) -> Result<()> {
    let index = planned.number as usize / 2_800 % store.clocks.len().max(1);
    let clock = store.clocks.get(index);
    let clock = clock.ok_or(Missed::Nothing("the server has no clock of its own"))?;
    let by = Duration::from_millis(200 + planned.number % 2_800);
    match planned.kind {
        Kind::ClockAhead => clock.set_ahead(by)?,
        _ => clock.set_behind(by)?,
    }
    tokio::time::sleep(Duration::from_millis(planned.lasts_ms)).await;
    Ok(clock.set_ahead(Duration::ZERO)?)
}

fn sessions_killed(store: &Store, server: &Server) -> Result<()> {
    if server.name() == "postgres" {
        let killed = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                      WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        server.sql(killed)?;
        return Ok(());
    }
    for server in store.data() {
        for kind in ["normal", "pubsub"] {
            server.redis(&["CLIENT", "KILL", "TYPE", kind])?;
        }
    }
    Ok(())
}

async fn fail_over(store: &Store) -> Result<()> {
    let Servers::Sentinel(group) = &store.servers else {
        return promotion(store).await;
    };
    let before = group.current_master()?.port();
    let service = leasehold_testkit::servers::SENTINEL_SERVICE;
    group.sentinels()[0].redis(&["SENTINEL", "FAILOVER", service])?;
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if group.current_master().is_ok_and(|master| master.port() != before) {
            return Ok(());
        }
    }
    Err(Missed::Nothing("no replica became the master within 5 s"))
}

/// A primary of PostgreSQL dies, and its standby takes over. The former primary comes back as the
/// standby of the new one, with a copy of its data.
async fn promotion(store: &Store) -> Result<()> {
    let servers = store.data();
    let follows = |server: &Server| server.sql("SELECT pg_is_in_recovery()");
    let [one, two] = servers[..] else {
        return Err(Missed::Nothing("there is no standby"));
    };
    let (primary, standby) = if follows(one)? == "t" { (two, one) } else { (one, two) };
    primary.kill()?;
    standby.sql("SELECT pg_promote()")?;
    Ok(primary.follow(standby).await?)
}

/// A replica of a Cluster becomes the master.
async fn hand_over(store: &Store, planned: &Planned) -> Result<()> {
    let servers = store.data();
    let replicas: Vec<&&Server> = servers.iter().filter(|one| !is_master(one)).collect();
    let none = Missed::Nothing("there is no replica");
    let index = planned.number as usize % replicas.len().max(1);
    let replica = replicas.get(index).ok_or(none)?;
    replica.redis(&["CLUSTER", "FAILOVER"])?;
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if is_master(replica) {
            return Ok(());
        }
    }
    Err(Missed::Nothing("the replica did not become the master within 5 s"))
}

/// Whether a Redis server is a master.
pub fn is_master(server: &Server) -> bool {
    server.redis(&["ROLE"]).is_ok_and(|role| role.starts_with("master"))
}

/// A node of a quorum starts with nothing. It is the same one each time: more than a minority may
/// not be empty, or come back from that, at a time.
async fn node_empty(store: &Store, lasts: Duration) -> Result<()> {
    let servers = store.data();
    let server = servers.last().ok_or(Missed::Nothing("there is no server"))?;
    server.kill()?;
    for entry in std::fs::read_dir(server.folder())? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("appendonly")) {
            std::fs::remove_dir_all(path)?;
        }
    }
    tokio::time::sleep(lasts).await;
    restarted(server).await
}

/// A member is cut off from the others, and clients reach all of them.
async fn member_cut(store: &Store, planned: &Planned) -> Result<()> {
    let Servers::Split(cluster) = &store.servers else {
        return Err(Missed::Nothing("its members cannot be cut off"));
    };
    cluster.cut_off(planned.number as usize % cluster.group().servers().len());
    tokio::time::sleep(Duration::from_millis(planned.lasts_ms)).await;
    Ok(cluster.heal().await?)
}

/// A member leaves the cluster for good, and another one without data comes in its place.
async fn member_replaced(store: &Store, planned: &Planned) -> Result<()> {
    let servers = store.data();
    let index = planned.number as usize % servers.len();
    let (server, other) = (servers[index], servers[(index + 1) % servers.len()]);
    let id = format!("{:x}", status_of(server, "header/member_id")?);
    let list = etcdctl(other, &["member", "list"])?;
    let line = list.lines().find(|line| line.starts_with(&id));
    let words: Vec<&str> = line.unwrap_or_default().split(", ").collect();
    let [_, _, name, peer, ..] = words[..] else {
        return Err(Missed::Nothing("the member is not in the list"));
    };
    once_healthy(other, &["member", "remove", &id]).await?;
    server.kill()?;
    std::fs::remove_dir_all(server.folder().join("data"))?;
    let peer = format!("--peer-urls={peer}");
    once_healthy(other, &["member", "add", name, &peer]).await?;
    server.add_argument("--initial-cluster-state=existing");
    restarted(server).await
}

/// A member of ZooKeeper comes back without data, as a new machine with its number would. It serves
/// once it has the leader's data.
async fn data_lost(server: &Server, lasts: Duration) -> Result<()> {
    server.kill()?;
    std::fs::remove_dir_all(server.folder().join("version-2"))?;
    tokio::time::sleep(lasts).await;
    restarted(server).await
}

/// Changes the members, as soon as the cluster allows it: it must have a leader, and its members
/// must have been in touch for five seconds.
async fn once_healthy(server: &Server, words: &[&str]) -> Result<()> {
    let mut tries = 1;
    while let Err(error) = etcdctl(server, words) {
        if tries == CHANGE_TRIES_MAX {
            return Err(error);
        }
        tries += 1;
        tokio::time::sleep(CHANGE_PAUSE).await;
    }
    Ok(())
}

/// Slots move from one master to another, with their keys. Until the first key of a slot has moved,
/// its old master still begins scripts.
async fn slot_move(store: &Store, planned: &Planned) -> Result<()> {
    let Servers::Group(group) = &store.servers else {
        return Err(Missed::Nothing("there is no cluster"));
    };
    let servers: Vec<&Server> = group.servers().iter().filter(|one| is_master(one)).collect();
    if servers.len() < 2 {
        return Err(Missed::Nothing("there is no other master"));
    }
    let name = SLOT_NAMES[planned.number as usize % SLOT_NAMES.len()];
    let has = |server: &Server, name: &str| server.redis(&["TYPE", &format!("lock:{name}")]);
    let from = servers.iter().position(|server| has(server, name).is_ok());
    let from = from.ok_or(Missed::Nothing("no server has the slot"))?;
    let to = (from + 1 + planned.number as usize % (servers.len() - 1)) % servers.len();
    let (from, to) = (servers[from], servers[to]);
    let slot = |name: &str| from.redis(&["CLUSTER", "KEYSLOT", &format!("lock:{name}")]);
    let names = SLOT_NAMES.into_iter().filter(|name| has(from, name).is_ok());
    let slots = names.map(slot).collect::<leasehold_testkit::Result<Vec<String>>>()?;
    let begun = slots.iter().try_for_each(|slot| {
        to.redis(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &id(from)?])?;
        from.redis(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &id(to)?]).map(drop)
    });
    tokio::time::sleep(Duration::from_millis(planned.lasts_ms)).await;
    // Also if it did not begin well: half of a move is no fault of the store.
    let mut tries = 1;
    while let Err(error) = slots.iter().try_for_each(|slot| finish_move(slot, from, to)) {
        if tries == CHANGE_TRIES_MAX {
            return Err(error.into());
        }
        tries += 1;
        tokio::time::sleep(CHANGE_PAUSE).await;
    }
    Ok(begun?)
}

/// The number by which the servers of a Cluster know each other.
fn id(server: &Server) -> leasehold_testkit::Result<String> {
    server.redis(&["CLUSTER", "MYID"])
}

/// Moves what is left of a slot. A second time does no harm.
fn finish_move(slot: &str, from: &Server, to: &Server) -> leasehold_testkit::Result<()> {
    let port = to.port().to_string();
    for _ in 0..MOVED_KEYS_MAX {
        let keys = from.redis(&["CLUSTER", "GETKEYSINSLOT", slot, "1"])?;
        let Some(key) = keys.lines().next() else { break };
        from.redis(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"])?;
    }
    let new = id(to)?;
    for server in [to, from] {
        server.redis(&["CLUSTER", "SETSLOT", slot, "NODE", &new])?;
    }
    Ok(())
}

/// What `etcdctl` says.
pub fn etcdctl(server: &Server, words: &[&str]) -> Result<String> {
    let output = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .args(["--command-timeout=2s", "--endpoints", &format!("http://{}", server.address())])
        .args(words)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Missed::Nothing("etcdctl had no success"))
}

/// A number of the status that an etcd server gives.
fn status_of(server: &Server, path: &str) -> Result<u64> {
    let text = etcdctl(server, &["endpoint", "status", "--write-out=json"])?;
    let status: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let number = status.pointer(&format!("/0/Status/{path}")).and_then(|number| number.as_u64());
    number.ok_or(Missed::Nothing("the status of etcd cannot be read"))
}

fn compaction(server: &Server) -> Result<()> {
    let revision = status_of(server, "header/revision")?;
    etcdctl(server, &["compact", &revision.to_string()]).map(|_| ())
}

fn leader_move(store: &Store) -> Result<()> {
    let leads = leader(store)?;
    let servers = store.data();
    let next = status_of(servers[(leads + 1) % servers.len()], "header/member_id")?;
    etcdctl(servers[leads], &["move-leader", &format!("{next:x}")]).map(|_| ())
}

/// Which server leads the others.
fn leader(store: &Store) -> Result<usize> {
    let group = match &store.servers {
        Servers::Group(group) => group,
        Servers::Split(cluster) => cluster.group(),
        _ => return Err(Missed::Nothing("there is no group")),
    };
    leader_of(group).ok_or(Missed::Nothing("there is no leader now"))
}

fn leader_of(group: &Group) -> Option<usize> {
    let leads = |server: &Server| match server.name() {
        "zookeeper" => mode(server).is_ok_and(|text| text.contains("Mode: leader")),
        _ => {
            let own = status_of(server, "header/member_id");
            own.is_ok_and(|own| status_of(server, "leader").is_ok_and(|leader| leader == own))
        }
    };
    group.servers().iter().position(leads)
}

/// What a ZooKeeper server says of itself.
fn mode(server: &Server) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&server.address(), ASK_MAX)?;
    stream.set_read_timeout(Some(ASK_MAX))?;
    stream.write_all(b"srvr")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
