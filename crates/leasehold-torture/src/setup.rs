//! The set-ups: which servers stand behind a name of `--engine`, what can happen to them, and what
//! the checks must know of them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_testkit::{
    Clock, Etcd, Group, Pgbouncer, Postgres, Proxy, Redirect, Redis, SentinelGroup, Server,
    SplitCluster, Zookeeper,
};
use tempfile::TempDir;

use crate::disk;
use crate::event::ms;
use crate::faults::Kind::{self, *};
use crate::faults::{LINK, WORKER};
use crate::history::Terms;

/// The release set-up of one engine.
#[derive(Debug)]
pub struct SetUp {
    /// What `--engine` calls it.
    pub name: &'static str,
    /// What is started.
    start: Start,
    /// The times to live that workers ask for, in milliseconds.
    pub ttls_ms: &'static [u64],
    /// The ttl that visitors ask for, in milliseconds; if none, one of the others.
    pub visit_ttl_ms: Option<u64>,
    /// A time for which the store keeps no name closed, in milliseconds, if there is one.
    pub too_long_ms: Option<u64>,
    /// Whether workers reach it by proxies of their own.
    pub has_links: bool,
    /// The faults of its workers beside the faults of all workers.
    pub worker: &'static [(Kind, u64)],
    /// The faults of the store.
    pub store: &'static [(Kind, u64)],
    /// Whether claims are granted in order of arrival.
    fifo: bool,
    /// Whether a lease lasts to its safe end although its owner is paused.
    lasts_to_safe_end: bool,
    /// The faults by which the store may forget leases, or end them early.
    forgets: &'static [Kind],
    /// How much later than asked a name opens that was to stay closed, in milliseconds.
    opens_late_ms: u64,
    /// How long nobody may be granted anything after the last fault, in milliseconds.
    progress_ms: u64,
    /// How many grants a run of two minutes is to make at least.
    pub grants: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Sqlite,
    Redis,
    Sentinel,
    Cluster,
    ClusterWithReplicas,
    Redlock(usize),
    Postgres,
    PostgresWithStandby,
    Pgbouncer,
    Advisory,
    Etcd(usize),
    Zookeeper(usize),
}

/// Sentinels look at a former master that lives every ten seconds. Until then it answers clients.
const DEMOTED: u64 = ms(15_000);

/// etcd counts in seconds and has a shortest lease, as docs/engines/etcd.md says.
const ETCD_OPENS_LATE: u64 = 2_000;

/// A session of ZooKeeper is half longer than what it is to last, and ends at a tick.
const ZOOKEEPER_OPENS_LATE: u64 = 1_000;

/// The longest session in the set-ups of ZooKeeper, in milliseconds, as its setting.
const ZOOKEEPER_SESSION: &str = "8000";

/// A session for this ttl is so long that a name which stays closed with it opens far too late. Of
/// three servers, the one that the client left may tell the leader its old timeout once more.
const ZOOKEEPER_VISIT_TTL: Option<u64> = Some(5_000);

/// No session lasts for so long.
const ZOOKEEPER_TOO_LONG: Option<u64> = Some(16_000);

/// A store forgets by these. A clock that was set back steps ahead when it is right again.
const FORGETS: &[Kind] = &[ServerEmpty, FailOver, ClockAhead, ClockBack];

/// These end a session of the server at once, and its locks with it. The client learns of that when
/// its connection ends. A session that is cut off ends after the leases of its client.
const ENDS_SESSIONS: &[Kind] =
    &[SessionsKilled, ServerKill, ServerRestart, LinkReset, LinkLostReply];

/// An owner sees the end of its connection within a round trip; the rest is for what it does then.
const ROUND_TRIP: u64 = ms(500);

const SERVER: [(Kind, u64); 4] =
    [(ServerPauseShort, 3), (ServerPauseLong, 2), (ServerKill, 2), (ServerRestart, 1)];

const fn usual(name: &'static str, start: Start, store: &'static [(Kind, u64)]) -> SetUp {
    SetUp {
        name,
        start,
        ttls_ms: &[2_000, 3_000],
        visit_ttl_ms: None,
        too_long_ms: None,
        has_links: true,
        worker: &[],
        store,
        fifo: true,
        lasts_to_safe_end: true,
        forgets: FORGETS,
        opens_late_ms: 200,
        progress_ms: 25_000,
        grants: 5_000,
    }
}

/// All set-ups.
pub const SETUPS: &[SetUp] = &[
    SetUp {
        has_links: false,
        worker: &[(WorkerDiskStall, 2)],
        ..usual(
            "sqlite",
            Start::Sqlite,
            &[(FileLocked, 3), (FileFull, 2), (BellsRemoved, 1), (Compaction, 2)],
        )
    },
    usual(
        "redis",
        Start::Redis,
        &[
            SERVER[0],
            SERVER[1],
            SERVER[2],
            SERVER[3],
            (ScriptFlush, 3),
            (ServerEmpty, 1),
            (SessionsKilled, 2),
            (ClockAhead, 1),
            (ClockBack, 1),
        ],
    ),
    usual(
        "sentinel",
        Start::Sentinel,
        &[
            SERVER[0],
            SERVER[1],
            SERVER[2],
            SERVER[3],
            // A fail-over may forget grants from before it, so most of the time there is none.
            (FailOver, 1),
            (ScriptFlush, 5),
            (SessionsKilled, 6),
        ],
    ),
    usual(
        "cluster",
        Start::Cluster,
        &[
            SERVER[0],
            SERVER[1],
            SERVER[2],
            SERVER[3],
            (SlotMove, 6),
            (ScriptFlush, 3),
            (SessionsKilled, 5),
        ],
    ),
    // No server is away for so long that its replica takes over by itself: that may forget. A
    // replica that has to take over waits until it has all data of its master.
    usual(
        "cluster6",
        Start::ClusterWithReplicas,
        &[SERVER[0], (HandOver, 6), (SlotMove, 2), (ScriptFlush, 2), (SessionsKilled, 3)],
    ),
    SetUp { fifo: false, ..usual("redlock3", Start::Redlock(3), REDLOCK) },
    SetUp { fifo: false, ..usual("redlock5", Start::Redlock(5), REDLOCK) },
    usual("postgres", Start::Postgres, POSTGRES),
    // The standby has everything that the primary confirms: a fail-over forgets nothing.
    SetUp {
        forgets: &[],
        ..usual(
            "postgres2",
            Start::PostgresWithStandby,
            &[SERVER[0], SERVER[1], SERVER[2], SERVER[3], (SessionsKilled, 2), (FailOver, 4)],
        )
    },
    SetUp {
        grants: 1_000,
        ..usual(
            "pgbouncer",
            Start::Pgbouncer,
            &[
                SERVER[0],
                SERVER[1],
                SERVER[2],
                SERVER[3],
                (SessionsKilled, 3),
                (PoolerRestart, 3),
                (ClockAhead, 1),
                (ClockBack, 1),
            ],
        )
    },
    SetUp {
        fifo: false,
        lasts_to_safe_end: false,
        forgets: ENDS_SESSIONS,
        progress_ms: 60_000,
        ..usual(
            "advisory",
            Start::Advisory,
            &[
                SERVER[0],
                (ServerPauseLong, 1),
                (ServerKill, 1),
                SERVER[3],
                (SessionsKilled, 3),
                (ClockAhead, 1),
                (ClockBack, 1),
            ],
        )
    },
    SetUp {
        opens_late_ms: ETCD_OPENS_LATE,
        ..usual(
            "etcd1",
            Start::Etcd(1),
            &[SERVER[0], SERVER[1], SERVER[2], SERVER[3], (Compaction, 3)],
        )
    },
    SetUp {
        opens_late_ms: ETCD_OPENS_LATE,
        ..usual(
            "etcd3",
            Start::Etcd(3),
            &[
                SERVER[0],
                SERVER[1],
                SERVER[2],
                SERVER[3],
                (LeaderKill, 2),
                (LeaderPause, 2),
                (LeaderMove, 3),
                (MemberCut, 3),
                (MemberReplaced, 2),
                (Compaction, 2),
            ],
        )
    },
    SetUp {
        opens_late_ms: ZOOKEEPER_OPENS_LATE,
        visit_ttl_ms: ZOOKEEPER_VISIT_TTL,
        too_long_ms: ZOOKEEPER_TOO_LONG,
        grants: 1_000,
        ..usual("zookeeper1", Start::Zookeeper(1), &[SERVER[0], SERVER[1], SERVER[2], SERVER[3]])
    },
    SetUp {
        opens_late_ms: ZOOKEEPER_OPENS_LATE,
        too_long_ms: ZOOKEEPER_TOO_LONG,
        grants: 1_000,
        ..usual(
            "zookeeper3",
            Start::Zookeeper(3),
            &[
                SERVER[0],
                SERVER[1],
                SERVER[2],
                SERVER[3],
                (LeaderKill, 2),
                (LeaderPause, 2),
                (MemberReplaced, 2),
            ],
        )
    },
];

const REDLOCK: &[(Kind, u64)] = &[
    SERVER[0],
    SERVER[1],
    SERVER[2],
    SERVER[3],
    (NodeEmpty, 2),
    (ScriptFlush, 3),
    (SessionsKilled, 3),
    (ClockAhead, 1),
    (ClockBack, 1),
];

const POSTGRES: &[(Kind, u64)] = &[
    SERVER[0],
    SERVER[1],
    SERVER[2],
    SERVER[3],
    (SessionsKilled, 4),
    (ClockAhead, 1),
    (ClockBack, 1),
];

impl SetUp {
    /// What the checks must know.
    pub fn terms(&self) -> Terms {
        let longest = self.ttls_ms.iter().max().copied().unwrap_or_default();
        Terms {
            fifo: self.fifo,
            lasts_to_safe_end: self.lasts_to_safe_end,
            unaware: if self.lasts_to_safe_end { ms(longest) } else { ROUND_TRIP },
            settles: if self.start == Start::Sentinel { DEMOTED } else { 0 },
            progress: ms(self.progress_ms),
            opens_late: ms(self.opens_late_ms),
            has_copies: matches!(self.start, Start::Redlock(_)),
        }
    }

    /// The kinds of faults that can happen here.
    pub fn kinds(&self) -> Vec<Kind> {
        let links = if self.has_links { LINK } else { &[] };
        let all = [self.worker, WORKER, links, self.store];
        all.into_iter().flatten().map(|(kind, _)| *kind).collect()
    }

    /// Whether a fault may make this store forget leases.
    pub fn forgets_by(&self, kind: Kind) -> bool {
        self.forgets.contains(&kind)
    }
}

/// A store that runs, and the way of each worker to it.
pub struct Store {
    /// The address.
    pub url: String,
    /// The servers.
    pub servers: Servers,
    /// The proxies of each worker, one for each server that it connects to.
    pub links: Vec<Vec<Proxy>>,
    /// Sends the connections of a worker to its proxies.
    redirect: Option<Redirect>,
    /// The clocks of the servers, where they have some of their own.
    pub clocks: Vec<Clock>,
}

/// What stands behind a store.
pub enum Servers {
    /// A file in a folder.
    File(TempDir),
    /// One server.
    One(Server),
    /// A server and the pooler before it.
    Pooled {
        /// The server.
        server: Server,
        /// The pooler.
        pooler: Server,
    },
    /// Several.
    Group(Group),
    /// Several, each of which can be cut off from the others.
    Split(SplitCluster),
    /// A master, its replicas and sentinels.
    Sentinel(SentinelGroup),
}

impl std::fmt::Debug for Store {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Store").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Why a set-up cannot be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start `{setup}`: {cause}")]
pub struct CannotStart {
    setup: &'static str,
    cause: String,
}

impl SetUp {
    /// Starts the servers, and a proxy to each of them for each worker. A file is made in `folder`.
    pub async fn start(&self, workers: usize, folder: &Path) -> Result<Store, CannotStart> {
        let cannot = |cause: String| CannotStart { setup: self.name, cause };
        let (servers, url, clocks) =
            self.start_servers(folder).await.map_err(|error| cannot(error.to_string()))?;
        let mut store = Store { url, servers, links: Vec::new(), redirect: None, clocks };
        if self.has_links {
            store.redirect = Some(Redirect::new().map_err(|error| cannot(error.to_string()))?);
            for _ in 0..workers {
                let mut links = Vec::new();
                for server in store.entrances() {
                    let proxy = Proxy::start(server.address()).await;
                    links.push(proxy.map_err(|error| cannot(error.to_string()))?);
                }
                store.links.push(links);
            }
        }
        Ok(store)
    }

    async fn start_servers(
        &self,
        folder: &Path,
    ) -> leasehold_testkit::Result<(Servers, String, Vec<Clock>)> {
        let redis = || Redis::new().append_only();
        let zookeeper = || Zookeeper::new().setting("maxSessionTimeout", ZOOKEEPER_SESSION);
        let group = |group: Group| {
            let url = group.url().to_owned();
            (Servers::Group(group), url, Vec::new())
        };
        let one = |server: Server, clocks| {
            let url = server.url().to_owned();
            (Servers::One(server), url, clocks)
        };
        Ok(match self.start {
            Start::Sqlite => {
                let folder = tempfile::tempdir_in(disk::folder().as_deref().unwrap_or(folder));
                let folder = folder.map_err(|source| leasehold_testkit::Error::Io {
                    doing: "make a folder for the file".to_owned(),
                    source,
                })?;
                let url = format!("sqlite:{}", database(folder.path()).display());
                (Servers::File(folder), url, Vec::new())
            }
            Start::Redis => {
                let clock = Clock::new()?;
                one(redis().clock(&clock).start().await?, vec![clock])
            }
            Start::Sentinel => {
                let started = redis().start_sentinel().await?;
                let url = started.url().to_owned();
                (Servers::Sentinel(started), url, Vec::new())
            }
            Start::Cluster => group(redis().start_cluster().await?),
            Start::ClusterWithReplicas => group(redis().start_cluster_with_replicas().await?),
            Start::Redlock(count) => {
                let clocks = (0..count).map(|_| Clock::new());
                let clocks = clocks.collect::<leasehold_testkit::Result<Vec<Clock>>>()?;
                let started = redis().start_on_clocks(&clocks).await?;
                let url = format!("{}?ttl_max_ms=5000", started.url());
                (Servers::Group(started), url, clocks)
            }
            Start::Postgres => {
                let clock = Clock::new()?;
                one(Postgres::new().clock(&clock).start().await?, vec![clock])
            }
            Start::PostgresWithStandby => group(Postgres::new().start_with_standby().await?),
            Start::Advisory => {
                let clock = Clock::new()?;
                let server = Postgres::new().clock(&clock).start().await?;
                let url = server.url().replace("postgres:", "postgres+advisory:");
                (Servers::One(server), url, vec![clock])
            }
            Start::Pgbouncer => {
                let clock = Clock::new()?;
                let server = Postgres::new().clock(&clock).start().await?;
                let pooler = Pgbouncer::before(&server).pool_size(8).start().await?;
                let url = pooler.url().to_owned();
                (Servers::Pooled { server, pooler }, url, vec![clock])
            }
            Start::Etcd(1) => one(Etcd::new().start().await?, Vec::new()),
            Start::Etcd(_) => {
                let started = Etcd::new().start_split_cluster().await?;
                let url = started.group().url().to_owned();
                (Servers::Split(started), url, Vec::new())
            }
            Start::Zookeeper(1) => one(zookeeper().start().await?, Vec::new()),
            Start::Zookeeper(_) => group(zookeeper().start_ensemble().await?),
        })
    }
}

impl Store {
    /// The servers that hold the data.
    pub fn data(&self) -> Vec<&Server> {
        match &self.servers {
            Servers::File(_) => Vec::new(),
            Servers::One(server) | Servers::Pooled { server, .. } => vec![server],
            Servers::Group(group) => group.servers().iter().collect(),
            Servers::Split(cluster) => cluster.group().servers().iter().collect(),
            Servers::Sentinel(group) => group.data().iter().collect(),
        }
    }

    /// The servers that clients connect to.
    fn entrances(&self) -> Vec<&Server> {
        match &self.servers {
            Servers::Pooled { pooler, .. } => vec![pooler],
            Servers::Sentinel(group) => group.data().iter().chain(group.sentinels()).collect(),
            _ => self.data(),
        }
    }

    /// The environment that sends a worker to its proxies, whichever servers it finds by itself.
    pub fn ways_of(&self, worker: usize) -> Vec<(&'static str, OsString)> {
        let (Some(redirect), Some(proxies)) = (&self.redirect, self.links.get(worker)) else {
            return Vec::new();
        };
        let servers = self.entrances().into_iter().map(Server::port);
        redirect.environment(servers.zip(proxies.iter().map(Proxy::port))).into()
    }

    /// The file of the database, where the store is one.
    pub fn file(&self) -> Option<PathBuf> {
        match &self.servers {
            Servers::File(folder) => Some(database(folder.path())),
            _ => None,
        }
    }

    /// Ends every fault that can be left: servers run, links pass, the clock is right.
    pub async fn heal(&self) -> leasehold_testkit::Result<()> {
        if let Servers::Split(cluster) = &self.servers {
            cluster.heal().await?;
        }
        for server in self.data().into_iter().chain(self.entrances()) {
            if server.pid().is_none() {
                server.launch()?;
            } else {
                server.continue_process()?;
            }
        }
        for server in self.data().into_iter().chain(self.entrances()) {
            server.wait_ready().await?;
        }
        for proxy in self.links.iter().flatten() {
            proxy.pass().await?;
        }
        for clock in &self.clocks {
            clock.set_ahead(Duration::ZERO)?;
        }
        Ok(())
    }
}

/// The database in its folder.
fn database(folder: &Path) -> PathBuf {
    folder.join("locks.db")
}

/// The set-ups that a name of `--engine` chooses: the one that is called so, or all of an engine,
/// `etcd` for instance.
pub fn named(name: &str) -> Vec<&'static SetUp> {
    if let Some(setup) = SETUPS.iter().find(|setup| setup.name == name) {
        return vec![setup];
    }
    let fits = |setup: &&SetUp| {
        let rest = setup.name.strip_prefix(name);
        rest.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    if name.is_empty() { Vec::new() } else { SETUPS.iter().filter(fits).collect() }
}

/// All names of set-ups, for messages.
pub fn names() -> String {
    SETUPS.iter().map(|setup| setup.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(name: &str) -> Vec<&'static str> {
        named(name).iter().map(|setup| setup.name).collect()
    }

    #[test]
    fn name_of_an_engine_chooses_all_its_set_ups() {
        assert_eq!(chosen("etcd"), ["etcd1", "etcd3"]);
        assert_eq!(chosen("etcd3"), ["etcd3"]);
        assert_eq!(chosen("redis"), ["redis"]);
        assert_eq!(chosen("cluster"), ["cluster"]);
        assert!(chosen("").is_empty() && chosen("mysql").is_empty());
    }
}
