//! Locks of other packages, in processes of their own. Leasehold must exclude and respect them.
//!
//! A peer runs one of the drivers in `interop` with the real package, as `cargo xtask setup`
//! installs it. The tests decide what to lock, and what must follow from it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::programs;
use crate::worker::Worker;

/// The versions of the packages; `cargo xtask setup` writes these texts as a stamp, in this order.
const PINS: &str = concat!(
    include_str!("../interop/requirements.txt"),
    include_str!("../interop/package.json"),
    include_str!("../interop/package-lock.json"),
);

/// A program starts and answers in less than a second; the rest is for a busy machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// A package that people take locks with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PeerKind {
    /// `Lock` of redis-py.
    RedisPy,
    /// `Lock` of redis-py's asyncio half.
    RedisPyAsyncio,
    /// python-redis-lock; its ttl and waits are whole seconds, rounded up.
    PythonRedisLock,
    /// redlock 5 of npm, on one Redis or several.
    Redlock,
    /// `Mutex` of redis-semaphore of npm.
    RedisSemaphore,
    /// The SQL functions of leasehold's PostgreSQL store, called with psycopg.
    Psycopg,
    /// The same with asyncpg.
    Asyncpg,
    /// Advisory locks with psycopg, on the keys of django-pglock. They have no ttl.
    PsycopgAdvisory,
    /// `Lock` of kazoo on ZooKeeper. It has no ttl, and cannot be extended.
    Kazoo,
    /// `ReadLock` of kazoo, otherwise the same.
    KazooRead,
    /// `WriteLock` of kazoo, otherwise the same.
    KazooWrite,
    /// `InterProcessMutex` of Curator on ZooKeeper. Like kazoo's, it has no ttl. A peer that holds
    /// it can take it again.
    Curator,
}

impl PeerKind {
    /// Those that lock a string on Redis.
    pub const ON_REDIS: [PeerKind; 5] = [
        PeerKind::RedisPy,
        PeerKind::RedisPyAsyncio,
        PeerKind::PythonRedisLock,
        PeerKind::Redlock,
        PeerKind::RedisSemaphore,
    ];

    /// Those that call SQL functions on PostgreSQL.
    pub const ON_POSTGRES: [PeerKind; 2] = [PeerKind::Psycopg, PeerKind::Asyncpg];

    /// Where the package keeps the lock of a name: a key of Redis, or the path of ZooKeeper below
    /// which it is.
    pub fn key(self, name: &str) -> String {
        match self {
            PeerKind::RedisPy
            | PeerKind::RedisPyAsyncio
            | PeerKind::Redlock
            | PeerKind::Psycopg
            | PeerKind::Asyncpg
            | PeerKind::PsycopgAdvisory => name.to_owned(),
            PeerKind::PythonRedisLock => format!("lock:{name}"),
            PeerKind::RedisSemaphore => format!("mutex:{name}"),
            PeerKind::Kazoo | PeerKind::KazooRead | PeerKind::KazooWrite | PeerKind::Curator => {
                format!("/{name}")
            }
        }
    }

    /// The name in the drivers.
    fn word(self) -> &'static str {
        match self {
            PeerKind::RedisPy => "redis-py",
            PeerKind::RedisPyAsyncio => "redis-py-asyncio",
            PeerKind::PythonRedisLock => "python-redis-lock",
            PeerKind::Redlock => "redlock",
            PeerKind::RedisSemaphore => "redis-semaphore",
            PeerKind::Psycopg => "psycopg",
            PeerKind::Asyncpg => "asyncpg",
            PeerKind::PsycopgAdvisory => "psycopg-advisory",
            PeerKind::Kazoo => "kazoo",
            PeerKind::KazooRead => "kazoo-read",
            PeerKind::KazooWrite => "kazoo-write",
            PeerKind::Curator => "curator",
        }
    }

    fn command(self) -> Result<Command> {
        if self == PeerKind::Curator {
            return java(self.word());
        }
        let (drivers, packages) = (folder("interop"), folder("../../target/interop"));
        if !fs::read_to_string(packages.join("stamp")).is_ok_and(|stamp| stamp == PINS) {
            return Err(Error::MissingPackages { folder: packages });
        }
        let (program, driver) = match self {
            PeerKind::Redlock | PeerKind::RedisSemaphore => {
                (programs::find("node", "nodejs")?, "peer.mjs")
            }
            _ => (packages.join("venv/bin/python"), "peer.py"),
        };
        let mut command = Command::new(program);
        command.arg(drivers.join(driver)).arg(self.word()).current_dir(packages);
        Ok(command)
    }
}

impl fmt::Display for PeerKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.word())
    }
}

/// A driver with the packages that Debian has; Java compiles it as it starts.
fn java(word: &str) -> Result<Command> {
    const CURATOR: &str = "libcurator-recipes-java";
    programs::find("javac", "default-jdk-headless")?;
    let jars = [
        programs::require("/usr/share/java/curator-recipes.jar", CURATOR)?,
        programs::require("/usr/share/java/curator-framework.jar", CURATOR)?,
        programs::require("/usr/share/java/curator-client.jar", CURATOR)?,
        programs::require("/usr/share/java/guava.jar", CURATOR)?,
        programs::require("/usr/share/java/zookeeper.jar", "zookeeper")?,
        programs::require("/usr/share/java/slf4j-simple.jar", "libslf4j-java")?,
    ];
    let mut command = Command::new(programs::find("java", "default-jre-headless")?);
    command.args(["-Xms32m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
    command.args(["-XX:-UsePerfData", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]);
    command.arg("-cp").arg(jars.join(":")).arg(folder("interop").join("Peer.java")).arg(word);
    Ok(command)
}

fn folder(beside: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(beside)
}

/// A process that takes locks with another package.
///
/// Each takes one request after the other. Its locks are never renewed; names hold no spaces.
/// Dropping it kills the process and leaves its locks to their ttl.
#[derive(Debug)]
pub struct Peer {
    kind: PeerKind,
    worker: Worker,
    /// Unread answers. More than one after a caller stopped waiting for the first.
    owed: usize,
}

impl Peer {
    /// Starts a peer on a server, or with [`PeerKind::Redlock`] on several.
    pub async fn spawn(kind: PeerKind, urls: &[&str]) -> Result<Peer> {
        let mut command = kind.command()?;
        // Everybody on this machine can read an argument, and the url may hold a password.
        command.env("LEASEHOLD_PEER_URL", urls.join(","));
        let mut peer = Peer { kind, worker: Worker::spawn(command)?, owed: 1 };
        peer.answer("start", Duration::ZERO, ["ready", "ready"]).await?;
        Ok(peer)
    }

    /// The package.
    pub fn kind(&self) -> PeerKind {
        self.kind
    }

    /// Where the package keeps the lock of a name; see [`PeerKind::key`].
    pub fn key(&self, name: &str) -> String {
        self.kind.key(name)
    }

    /// Tries once to take a lock; false when it is busy.
    ///
    /// # Cancel safety
    ///
    /// The request goes on when the caller stops waiting, here and with all requests below. The
    /// peer answers the next request after it.
    pub async fn try_lock(&mut self, name: &str, ttl: Duration) -> Result<bool> {
        let request = format!("try {} {}", word(name), ttl.as_millis());
        self.ask(&request, Duration::ZERO, ["held", "busy"]).await
    }

    /// Waits for a lock as the package does, at most for `wait`; false when the wait was in vain.
    pub async fn lock(&mut self, name: &str, ttl: Duration, wait: Duration) -> Result<bool> {
        let request = format!("lock {} {} {}", word(name), ttl.as_millis(), wait.as_millis());
        self.ask(&request, wait, ["held", "timeout"]).await
    }

    /// Gives a lock back; false when it was the peer's no more.
    pub async fn release(&mut self, name: &str) -> Result<bool> {
        let request = format!("release {}", word(name));
        self.ask(&request, Duration::ZERO, ["released", "gone"]).await
    }

    /// Makes a lock last for `ttl` from now; false when it was the peer's no more.
    pub async fn extend(&mut self, name: &str, ttl: Duration) -> Result<bool> {
        let request = format!("extend {} {}", word(name), ttl.as_millis());
        self.ask(&request, Duration::ZERO, ["extended", "gone"]).await
    }

    /// Writes a node of ZooKeeper that anybody may own; false when the server does not allow it.
    pub async fn write(&mut self, node: &str) -> Result<bool> {
        let request = format!("write {}", word(node));
        self.ask(&request, Duration::ZERO, ["written", "refused"]).await
    }

    /// Lets everybody read a node of ZooKeeper and nobody change it; only kazoo's peers can. False
    /// when the server does not allow it.
    pub async fn seal(&mut self, node: &str) -> Result<bool> {
        let request = format!("seal {}", word(node));
        self.ask(&request, Duration::ZERO, ["sealed", "refused"]).await
    }

    /// Tries once to take a lock, with the package's defaults for all but its name and holder. This
    /// and the following requests are for PostgreSQL.
    pub async fn take(&mut self, name: &str) -> Result<bool> {
        self.ask(&format!("take {}", word(name)), Duration::ZERO, ["held", "busy"]).await
    }

    /// Makes a lock last for the default ttl from now; false when it was the peer's no more.
    pub async fn keep(&mut self, name: &str) -> Result<bool> {
        self.ask(&format!("keep {}", word(name)), Duration::ZERO, ["extended", "gone"]).await
    }

    /// As [`take`](Peer::take), with metadata in JSON without spaces.
    pub async fn mark(&mut self, name: &str, metadata: &str) -> Result<bool> {
        let request = format!("mark {} {}", word(name), word(metadata));
        self.ask(&request, Duration::ZERO, ["held", "busy"]).await
    }

    /// The view of locks for a name: holder, seconds from beginning to end, metadata; or `free`.
    pub async fn see(&mut self, name: &str) -> Result<String> {
        let request = format!("see {}", word(name));
        self.worker.send_line(&request)?;
        self.owed += 1;
        self.line(Duration::ZERO).await
    }

    /// Ends the process with `SIGKILL`, as a crash would.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        self.worker.kill()
    }

    /// The process, to stop it and let it go on.
    pub fn worker(&mut self) -> &mut Worker {
        &mut self.worker
    }

    async fn ask(&mut self, request: &str, wait: Duration, answers: [&str; 2]) -> Result<bool> {
        self.worker.send_line(request)?;
        self.owed += 1;
        self.answer(request, wait, answers).await
    }

    /// Reads the answer to the last request. It is the first of the two words in `answers` or the
    /// second.
    async fn answer(&mut self, request: &str, wait: Duration, answers: [&str; 2]) -> Result<bool> {
        let line = self.line(wait).await?;
        if let Some(which) = answers.iter().position(|answer| *answer == line) {
            return Ok(which == 0);
        }
        let (server, request) = (self.kind.to_string(), request.to_owned());
        Err(Error::Refused { server, request, answer: line })
    }

    /// Reads the answer to the last request.
    async fn line(&mut self, wait: Duration) -> Result<String> {
        loop {
            let line = self.worker.next_line(wait + ANSWER_LIMIT).await?;
            let Some(line) = line else {
                let name = format!("{}, its messages:\n{}", self.kind, self.worker.stderr());
                return Err(Error::NotRunning { name });
            };
            self.owed -= 1;
            if self.owed == 0 {
                return Ok(line);
            }
        }
    }
}

/// A name as a word of a line.
fn word(name: &str) -> &str {
    let is_word = !name.is_empty() && !name.contains(char::is_whitespace);
    assert!(is_word, "names of peers are without spaces: `{name}`");
    name
}
