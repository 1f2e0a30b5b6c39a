//! The rest in a store after everybody has ended, as the store's own tools show it. The library is
//! not asked: a claim that it cannot read is left all the same.

use std::collections::BTreeSet;

use leasehold_testkit::Server;
use leasehold_testkit::servers::{litter, znodes};

use crate::event::now;
use crate::setup::Store;
use crate::strike::{Missed, etcdctl, is_master};

type Result<T> = std::result::Result<T, Missed>;

/// Where the nodes of a store are in ZooKeeper.
const ROOT: &str = "/locks";

/// The start of the keys of observers in etcd.
const ETCD_WATCHER: &str = "leasehold:watcher:";

/// How a lease of etcd is named that is left.
const THE_LEASE: &str = "the lease ";

/// What `etcdctl` says of an observer's lease. One that died before it wrote its key leaves the
/// lease alone, which ends by itself. No claim of a run lives for so long.
const OBSERVES: &str = "granted with TTL(30s)";

/// Claims that hold or wait, and have not ended. The next client removes those that have.
const TABLE: &str = "SELECT 'a claim on ' || name FROM leasehold.claims \
                     WHERE expires > clock_timestamp() \
                     UNION ALL SELECT 'a claim on ' || name FROM leasehold.lines \
                     WHERE sole IS NOT NULL AND expires > clock_timestamp()";

const ADVISORY: &str =
    "SELECT 'an advisory lock of session ' || pid FROM pg_locks WHERE locktype = 'advisory'";

/// Everything that is left, in words.
pub async fn find(store: &Store) -> Result<Vec<String>> {
    if let Some(file) = store.file() {
        return in_file(&file);
    }
    let mut found = Vec::new();
    for server in store.data() {
        found.extend(match server.name() {
            "etcd" => in_etcd(server)?,
            "zookeeper" => in_zookeeper(server).await?,
            "postgres" => in_postgres(server, store)?,
            _ => in_redis(server)?,
        });
    }
    found.sort();
    found.dedup();
    Ok(found)
}

fn in_file(file: &std::path::Path) -> Result<Vec<String>> {
    let database = rusqlite::Connection::open(file)?;
    let mut claims = database.prepare("SELECT name FROM claims WHERE expires > ?1")?;
    let present = i64::try_from(now()).unwrap_or(i64::MAX);
    let names = claims.query_map([present], |row| row.get::<_, String>(0))?;
    names.map(|name| Ok(format!("a claim on {}", name?))).collect()
}

fn in_etcd(server: &Server) -> Result<Vec<String>> {
    let keys = etcdctl(server, &["get", "", "--prefix", "--keys-only"])?;
    let mut found = etcd_rests(&keys, &etcdctl(server, &["lease", "list"])?);
    found.retain(|rest| {
        let lease = rest.strip_prefix(THE_LEASE);
        let span = lease.map(|lease| etcdctl(server, &["lease", "timetolive", lease]));
        !span.is_some_and(|span| span.is_ok_and(|span| span.contains(OBSERVES)))
    });
    Ok(found)
}

/// The rest by the keys and the leases that `etcdctl` lists.
fn etcd_rests(keys: &str, leases: &str) -> Vec<String> {
    // An observer that died is no claim. Its key is named after its lease, and ends with it. The
    // key has no leading zeros, and the list of leases has.
    let number = |hex: &str| u64::from_str_radix(hex, 16).ok();
    let watcher = |key: &str| key.strip_prefix(ETCD_WATCHER).and_then(number);
    let observers: BTreeSet<u64> = keys.lines().filter_map(watcher).collect();
    let is_observer = |lease: &str| number(lease).is_some_and(|lease| observers.contains(&lease));
    let keys = keys.lines().filter(|key| !key.is_empty() && !etcd_keeps(key));
    let mut found: Vec<String> = keys.map(|key| format!("the key {key}")).collect();
    // The first line says how many there are.
    let leases = leases.lines().skip(1).filter(|lease| !is_observer(lease));
    found.extend(leases.map(|lease| format!("{THE_LEASE}{lease}")));
    found
}

/// Whether a key stays in a store for good, as docs/engines/etcd.md has it.
fn etcd_keeps(key: &str) -> bool {
    let own = key.split_once("leasehold:").map(|(_, own)| own);
    own.is_some_and(|own| {
        let stays = ["store", "epoch", "farewell"].contains(&own) || own.starts_with("totals:");
        stays || key.starts_with(ETCD_WATCHER)
    })
}

async fn in_zookeeper(server: &Server) -> Result<Vec<String>> {
    let nodes = znodes(server.address(), ROOT, None).await?;
    let nodes = litter(&nodes, ROOT).into_iter();
    Ok(nodes.map(|node| format!("the node {}", node.path)).collect())
}

fn in_postgres(server: &Server, store: &Store) -> Result<Vec<String>> {
    let is_advisory = store.url.starts_with("postgres+advisory:");
    let rows = server.sql(if is_advisory { ADVISORY } else { TABLE })?;
    Ok(rows.lines().map(str::to_owned).collect())
}

/// A replica has what its master has.
fn in_redis(server: &Server) -> Result<Vec<String>> {
    if !is_master(server) {
        return Ok(Vec::new());
    }
    let keys = server.redis(&["KEYS", "*"])?;
    let mut found = Vec::new();
    for key in keys.lines().filter(|key| !redis_keeps(key)) {
        // The line of claims that ended by themselves ends by itself too, a while later.
        let ends = key.starts_with("leasehold:") && server.redis(&["TTL", key])? != "-1";
        if !ends {
            found.push(format!("the key {key}"));
        }
    }
    Ok(found)
}

/// Whether a key is none of a claim: counters, the sums and the store's id stay.
fn redis_keeps(key: &str) -> bool {
    let parts = [":line:", ":order:", ":expiry:", ":notices:"];
    key.is_empty() || (key.starts_with("leasehold:") && !parts.iter().any(|of| key.contains(of)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_left_and_what_a_store_keeps_is_not() {
        assert!(redis_keeps("leasehold:fence:7") && redis_keeps("leasehold:quorum:marker:lock:"));
        assert!(!redis_keeps("lock:m0") && !redis_keeps("leasehold:{0}:line:lock:m0"));
        assert!(etcd_keeps("leasehold:store") && etcd_keeps("leasehold:totals:7"));
        assert!(etcd_keeps("leasehold:watcher:1f") && !etcd_keeps("leasehold:notices:1"));
        assert!(!etcd_keeps("m0/1f"));
    }

    #[test]
    fn lease_of_a_dead_observer_is_not_left_whatever_its_number() {
        let keys = "leasehold:store\n\nleasehold:watcher:907ddb8eccc8f4\n\n";
        let list = "found 1 leases\n00907ddb8eccc8f4\n";
        assert_eq!(etcd_rests(keys, list), [] as [&str; 0]);
        let list = "found 1 leases\n10907ddb8eccc8f4\n";
        assert_eq!(etcd_rests(keys, list), ["the lease 10907ddb8eccc8f4"]);
    }
}
