//! Redis in groups: independent servers, a cluster, and a master watched by sentinels.
//!
//! Each function starts a group once, on ports of its own; the caller starts again.

use std::ffi::OsString;
use std::fs;

use super::group::{Group, SENTINEL_SERVICE, SentinelGroup};
use super::redis::Redis;
use super::server::{Plan, Server};
use super::wait_for_group;
use crate::error::{Doing, Error, Result};
use crate::ports::Port;

/// The slots of each master; together they are all 16384.
const SLOTS: [(&str, &str); 3] = [("0", "5460"), ("5461", "10922"), ("10923", "16383")];

/// Replicas of the master, and sentinels that watch it; two of three sentinels are a quorum.
const REPLICAS: usize = 2;
const SENTINELS: usize = 3;

/// Starts a server for each of these options, which have the same login.
pub(super) fn start_all(options: &[Redis]) -> Result<Group> {
    let servers = launch_all(options.iter().map(Redis::plan))?;
    wait_all(&servers)?;
    let login = options.first().map(Redis::url_login).unwrap_or_default();
    Ok(Group::new(&format!("redlock://{login}"), servers))
}

/// The shape of a cluster.
pub(super) struct Shape {
    /// The replicas of each master.
    replicas: usize,
    /// The time without an answer after which a server counts as failed.
    node_timeout_ms: u32,
}

pub(super) const ALONE: Shape = Shape { replicas: 0, node_timeout_ms: 2_000 };
pub(super) const WITH_REPLICAS: Shape = Shape { replicas: 1, node_timeout_ms: 15_000 };

pub(super) fn start_cluster(options: &Redis, shape: Shape) -> Result<Group> {
    let count = SLOTS.len() * (1 + shape.replicas);
    let servers = launch_all((0..count).map(|_| cluster_plan(options, &shape)))?;
    wait_all(&servers)?;
    let (masters, replicas) = servers.split_at(SLOTS.len());
    for (index, (server, (first, last))) in masters.iter().zip(SLOTS).enumerate() {
        server.redis(&["CLUSTER", "ADDSLOTSRANGE", first, last])?;
        // Different epochs from the start save the servers from resolving collisions.
        server.redis(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])?;
    }
    for server in &servers[1..] {
        let (port, bus) = (server.port().to_string(), server.other_port(1).to_string());
        servers[0].redis(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
    }
    let members: Vec<&Server> = servers.iter().collect();
    let known = format!("cluster_known_nodes:{count}");
    wait_for_group("redis cluster", &members, || {
        servers.iter().try_for_each(|server| {
            let state = server.redis(&["CLUSTER", "INFO"]).map_err(|error| error.to_string())?;
            let is_ready = ["cluster_state:ok", &known, "cluster_size:3"]
                .iter()
                .all(|wanted| state.contains(wanted));
            if is_ready { Ok(()) } else { Err(state) }
        })
    })?;
    for (replica, master) in replicas.iter().zip(masters.iter().cycle()) {
        let id = master.redis(&["CLUSTER", "MYID"])?;
        replica.redis(&["CLUSTER", "REPLICATE", &id])?;
    }
    wait_for_group("redis replicas", &members, || replicas_are_linked(replicas))?;
    let start = format!("{}+cluster://{}", options.scheme(), options.url_login());
    Ok(Group::new(&start, servers))
}

fn cluster_plan(options: &Redis, shape: &Shape) -> Result<Plan> {
    let mut plan = options.plan()?;
    // By default the bus port is the client port plus 10000, which no test has reserved.
    let bus = Port::reserve()?;
    let timeout = shape.node_timeout_ms.to_string();
    let words = ["--cluster-enabled", "yes", "--cluster-node-timeout", &timeout, "--cluster-port"];
    plan.arguments.extend(words.map(OsString::from));
    plan.arguments.push(bus.number().to_string().into());
    plan.ports.push(bus);
    Ok(plan)
}

pub(super) fn start_sentinel(options: &Redis) -> Result<SentinelGroup> {
    let mut data = vec![Server::launched(data_plan(options, None)?)?];
    let master = data[0].port();
    for _ in 0..REPLICAS {
        data.push(Server::launched(data_plan(options, Some(master))?)?);
    }
    wait_all(&data)?;
    let members: Vec<&Server> = data.iter().collect();
    // Sentinels ask for the replicas at their start and then only every 10 s.
    wait_for_group("redis replicas", &members, || replicas_are_linked(&data[1..]))?;
    let sentinels = launch_all((0..SENTINELS).map(|_| sentinel_plan(options, master)))?;
    wait_all(&sentinels)?;
    let members: Vec<&Server> = data.iter().chain(&sentinels).collect();
    wait_for_group("redis sentinel", &members, || {
        sentinels.iter().try_for_each(sentinel_is_ready)
    })?;
    let start = format!("{}+sentinel://{}", options.scheme(), options.url_login());
    Ok(SentinelGroup::new(&start, data, sentinels))
}

/// A server that holds data: the master, or a replica of it.
fn data_plan(options: &Redis, master: Option<u16>) -> Result<Plan> {
    let mut plan = options.plan()?;
    // A master waits 5 s for more replicas before it copies its data to the first one. Every server
    // may become a master.
    plan.arguments.extend(["--repl-diskless-sync-delay", "0"].map(OsString::from));
    if let Some(login) = options.login() {
        // For every server again, because each may become a replica.
        plan.arguments.extend(["--masterauth", &login.password].map(OsString::from));
    }
    if let Some(master) = master {
        plan.name = "redis replica";
        let master = master.to_string();
        plan.arguments.extend(["--replicaof", "127.0.0.1", &master].map(OsString::from));
    }
    Ok(plan)
}

/// A sentinel writes what it learns into its file, so that it still knows it after a restart.
fn sentinel_plan(options: &Redis, master: u16) -> Result<Plan> {
    let own = options.for_sentinels();
    let mut plan = own.plan()?;
    plan.name = "redis sentinel";
    let file = plan.folder.path().join("sentinel.conf");
    let mut text = format!(
        "dir {folder}\n\
         loglevel warning\n\
         sentinel monitor {SENTINEL_SERVICE} 127.0.0.1 {master} 2\n\
         sentinel down-after-milliseconds {SENTINEL_SERVICE} 1000\n\
         sentinel failover-timeout {SENTINEL_SERVICE} 3000\n",
        folder = plan.folder.path().display(),
    );
    for (name, value) in own.port_settings(&plan.ports[0], &plan.folder)? {
        text.push_str(&format!("{name} {value}\n"));
    }
    if let Some(login) = options.login() {
        let password = quoted(&login.password);
        text.push_str(&format!("sentinel auth-pass {SENTINEL_SERVICE} {password}\n"));
    }
    if let Some(login) = own.login() {
        // Sentinels try their own password with each other.
        text.push_str(&format!("requirepass {}\n", quoted(&login.password)));
    }
    fs::write(&file, text).doing(|| format!("write {}", file.display()))?;
    plan.arguments = vec![file.into(), "--sentinel".into()];
    Ok(plan)
}

/// A word of a Redis file that may hold spaces and quotes.
fn quoted(word: &str) -> String {
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A failover would pass over a replica that is still copying.
fn replicas_are_linked(replicas: &[Server]) -> Result<(), String> {
    replicas.iter().try_for_each(|replica| {
        let answer = replica.redis(&["INFO", "replication"]);
        let state = answer.map_err(|error| error.to_string())?;
        if state.contains("master_link_status:up") { Ok(()) } else { Err(state) }
    })
}

fn sentinel_is_ready(sentinel: &Server) -> Result<(), String> {
    let ask = |request: &str| {
        let answer = sentinel.redis(&["SENTINEL", request, SENTINEL_SERVICE]);
        answer.map_err(|error| error.to_string())
    };
    let quorum = ask("CKQUORUM")?;
    if !quorum.starts_with(&format!("OK {SENTINELS}")) {
        return Err(quorum);
    }
    let master = ask("MASTER")?;
    if !master.contains(&format!("num-slaves\n{REPLICAS}\n")) {
        return Err(format!("not all replicas are known:\n{master}"));
    }
    Ok(())
}

/// The port of the current master, as the first sentinel to answer knows it.
pub(super) fn master_port(sentinels: &[Server]) -> Result<u16> {
    let mut last = Error::NotRunning { name: "redis sentinel".to_owned() };
    for sentinel in sentinels.iter().filter(|sentinel| sentinel.pid().is_some()) {
        let request = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SENTINEL_SERVICE];
        match sentinel.redis(&request) {
            Ok(answer) => match answer.lines().last().map(str::parse) {
                Some(Ok(port)) => return Ok(port),
                _ => {
                    let (server, request) = (sentinel.name().to_owned(), request.join(" "));
                    last = Error::Refused { server, request, answer };
                }
            },
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Starts all servers, so that they become ready side by side.
fn launch_all(plans: impl Iterator<Item = Result<Plan>>) -> Result<Vec<Server>> {
    plans.map(|plan| Server::launched(plan?)).collect()
}

fn wait_all(servers: &[Server]) -> Result<()> {
    servers.iter().try_for_each(Server::wait_ready_blocking)
}
