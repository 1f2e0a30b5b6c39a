//! From a URL to a quorum of Redis nodes.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::kit::address::{Address, TlsFiles, bad};
use crate::engines::quorum::ballot::NODES_MAX;
use crate::engines::quorum::{Node, Quorum, Settings};
use crate::error::{Config, Error, Result};
use crate::rule::claim::Ttl;

use super::failure;
use super::keys::QuorumLayout;
use super::link::Links;
use super::node::RedisNode;
use super::settings::{database, look_every, way};
use super::shape::{Limits, Shape};

const PORT: u16 = 6379;

const EXAMPLES: &[&str] =
    &["redlock://HOST:PORT,HOST:PORT,HOST:PORT/DATABASE", "redlocks://USER@HOST,HOST,HOST"];

const OPTIONS: &str = "`prefix`, `ttl_max_ms`, `node_timeout_ms`, `allow_eviction`, \
    `look_every_ms`, `ca`, `cert`, `key`";

/// The longest ttl unless said otherwise: twice the usual one. A node that started empty does not
/// vote for as long.
const TTL_MAX: Duration = Duration::from_secs(60);

/// How long a node may take unless said otherwise: long for a network, and short beside a ttl.
const NODE_TIMEOUT: Duration = Duration::from_millis(500);

impl Quorum {
    /// Opens the nodes that a `redlock:` or `redlocks:` URL names as one store.
    pub async fn open(url: impl AsRef<str>) -> Result<Self> {
        let (nodes, settings) = parse(url.as_ref())?;
        Self::of_nodes(nodes, settings).await
    }
}

pub(super) fn parse(url: &str) -> Result<(Vec<Arc<dyn Node>>, Settings)> {
    let mut address = Address::parse(url, PORT, EXAMPLES)?;
    let store = address.public();
    let secure = address.scheme == "redlocks";
    let tls = TlsFiles::take(&mut address.options)?;
    let options = &mut address.options;
    let prefix = options.text("prefix").unwrap_or_else(|| "lock:".into());
    let ttl_max = options.millis("ttl_max_ms")?.unwrap_or(TTL_MAX);
    let node_timeout = options.millis("node_timeout_ms")?.unwrap_or(NODE_TIMEOUT);
    let allow_eviction = options.flag("allow_eviction")?.unwrap_or(false);
    let look_every = look_every(options)?;
    if Ttl::new(ttl_max).is_err() {
        return Err(bad("ttl_max_ms", "takes 100 ms to 24 h"));
    }
    if node_timeout.is_zero() {
        return Err(bad("node_timeout_ms", "takes more than nothing"));
    }
    let mut way = way(&mut address, secure.then_some(tls))?;
    way.database = database(address.path.trim_start_matches('/'))?;
    way.limits = Limits { connect: node_timeout, answer: node_timeout };
    // In one order whoever writes them down in which, so that all found a set in the same order.
    let mut hosts = address.hosts.clone();
    hosts.sort_by(|one, other| (&one.name, one.port).cmp(&(&other.name, other.port)));
    let count = hosts.len();
    hosts.dedup();
    if hosts.len() != count || hosts.iter().any(|host| host.name.is_empty()) {
        return Err(url_error("a host is missing, or there twice"));
    }
    if count > NODES_MAX {
        return Err(url_error("it names more than 15 nodes"));
    }
    address.options.finish(OPTIONS)?;
    let layout = QuorumLayout::new(prefix, way.database);
    let mut nodes: Vec<Arc<dyn Node>> = Vec::with_capacity(count);
    for host in &hosts {
        let name = host.to_string();
        let client = way.client(host).map_err(|error| failure::translate(&error, &name))?;
        let shape = Shape::One { way: way.clone(), client };
        let links = Links::with_run_id(shape, name.clone(), layout.for_holders.clone());
        nodes.push(Arc::new(RedisNode::new(name, layout.clone(), links, allow_eviction)));
    }
    Ok((nodes, Settings { store, ttl_max, node_timeout, look_every }))
}

fn url_error(reason: &str) -> Error {
    Error::Config(Config::Url { reason: reason.into(), known: EXAMPLES.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_in_one_order_however_they_are_written_down() {
        let (nodes, settings) = parse("redlock://u:hush@b,a:9,a:8/3?ttl_max_ms=700").expect("good");
        let names: Vec<&str> = nodes.iter().map(|node| node.address()).collect();
        assert_eq!(names, ["a:8", "a:9", "b:6379"]);
        assert_eq!(settings.ttl_max, Duration::from_millis(700));
        assert!(!format!("{settings:?} {nodes:?}").contains("hush"));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_without_the_password() {
        let many = (0..16).map(|port| format!("h:{port}")).collect::<Vec<_>>().join(",");
        let urls = [
            "redlock://u:hush@a,a".to_owned(),
            "redlock://u:hush@a,,b".to_owned(),
            "redlock://u:hush@a,b/x".to_owned(),
            "redlock://u:hush@a,b?wait_replicas=1".to_owned(),
            "redlock://u:hush@a,b?ttl_max_ms=1".to_owned(),
            "redlock://u:hush@a,b?node_timeout_ms=0".to_owned(),
            format!("redlock://u:hush@{many}"),
        ];
        for url in urls {
            let error = parse(&url).expect_err(&url);
            assert!(matches!(error, Error::Config(_)), "{url}: {error:?}");
            assert!(!error.to_string().contains("hush"), "{error}");
        }
    }
}
