//! A cluster whose members can be cut off from each other while they run on.
//!
//! etcd has one address for each member, so its listener cannot tell which member dials. Here
//! members know each other by addresses that no machine has. Each member reaches them through a
//! gate of its own, so there is a proxy in every way from one member to another. Clients connect as
//! usual.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

use super::START_ATTEMPTS_MAX;
use super::etcd::{Etcd, Place};
use super::gate::{Gate, Table};
use super::group::Group;
use super::server::Server;
use crate::error::{Error, Result, unblock};
use crate::proxy::{Direction, Proxy};

/// The way from one member to another.
#[derive(Debug)]
struct Way {
    from: usize,
    to: usize,
    proxy: Proxy,
}

/// A cluster, and the proxies between its members.
///
/// The proxies run on the tokio runtime that started them. Dropping it ends everything.
pub struct SplitCluster {
    group: Group,
    ways: Vec<Way>,
    _gates: Vec<Gate>,
}

impl fmt::Debug for SplitCluster {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SplitCluster").field("group", &self.group).finish_non_exhaustive()
    }
}

impl SplitCluster {
    pub(super) async fn start(options: &Etcd, count: usize) -> Result<SplitCluster> {
        let mut attempts = 1;
        loop {
            match SplitCluster::start_once(options.clone(), count).await {
                Err(Error::EarlyExit { .. }) if attempts < START_ATTEMPTS_MAX => attempts += 1,
                result => return result,
            }
        }
    }

    async fn start_once(options: Etcd, count: usize) -> Result<SplitCluster> {
        let mut places = (0..count).map(|_| Place::reserve()).collect::<Result<Vec<Place>>>()?;
        let (mut ways, mut gates) = (Vec::new(), Vec::new());
        for from in 0..count {
            let mut table = Table::new();
            for to in (0..count).filter(|to| *to != from) {
                let proxy = Proxy::start(places[to].peer_address()).await?;
                table.insert(known_as(to), proxy.address());
                ways.push(Way { from, to, proxy });
            }
            gates.push(Gate::open(table).await?);
        }
        for (index, place) in places.iter_mut().enumerate() {
            place.peer_url = format!("http://{}", known_as(index));
            place.gate = Some(gates[index].address());
        }
        let servers = unblock(move || {
            let servers = options.launch_at(places)?;
            servers.iter().try_for_each(Server::wait_ready_blocking)?;
            Ok(servers)
        });
        let group = Group::new("etcd://", servers.await?);
        Ok(SplitCluster { group, ways, _gates: gates })
    }

    /// The members.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Cuts a member off from the others: no byte passes between them from now on. It runs on, and
    /// so do the others, and clients reach all of them.
    pub fn cut_off(&self, member: usize) {
        for way in self.ways.iter().filter(|way| way.from == member || way.to == member) {
            way.proxy.block(Direction::Both);
        }
    }

    /// Lets members reach each other again.
    pub async fn heal(&self) -> Result<()> {
        for way in &self.ways {
            way.proxy.pass().await?;
        }
        Ok(())
    }
}

/// The address by which the others know a member: one for documentation, which no machine has. It
/// must not be an address of this machine, because etcd uses no proxy for those.
fn known_as(index: usize) -> SocketAddrV4 {
    let last = u8::try_from(index + 1).expect("a small cluster");
    SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, last), 2380)
}
