//! etcd: options, one server, and a cluster of three.
//!
//! `split` cuts a member off from the others.

use std::ffi::OsString;
use std::net::SocketAddr;

use rustix::process::Signal;

use super::group::{Group, start_with};
use super::probe::Probe;
use super::server::{Plan, Server};
use super::split::SplitCluster;
use super::with_retries;
use crate::certificates::{Certificates, Tls};
use crate::error::Result;
use crate::folder::Folder;
use crate::ports::Port;
use crate::programs;

/// The Debian package that has the server.
const PACKAGE: &str = "etcd-server";

/// The members of a cluster.
const CLUSTER: usize = 3;

/// Starts etcd servers; the methods set options.
///
/// It does not wait for the disk by default; see [`fsync`](Etcd::fsync). Data survives a kill of
/// the server either way.
#[derive(Clone, Debug, Default)]
pub struct Etcd {
    fsync: bool,
    tls: Option<Tls>,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

impl Etcd {
    /// A server with the harness's defaults.
    pub fn new() -> Etcd {
        Etcd::default()
    }

    /// Whether a change waits for the disk, as it would in production; off by default.
    pub fn fsync(mut self, on: bool) -> Etcd {
        self.fsync = on;
        self
    }

    /// Speaks only TLS with clients; members still talk in the clear among themselves.
    pub fn tls(mut self, certificates: &Certificates) -> Etcd {
        self.tls = Some(Tls { certificates: certificates.clone(), mutual: false });
        self
    }

    /// [`tls`](Etcd::tls), and turns away clients that show no certificate of the authority.
    pub fn mutual_tls(mut self, certificates: &Certificates) -> Etcd {
        self.tls = Some(Tls { certificates: certificates.clone(), mutual: true });
        self
    }

    /// Adds a word to the command line; a repeated flag overrides the harness's own.
    pub fn argument(mut self, word: impl Into<OsString>) -> Etcd {
        self.arguments.push(word.into());
        self
    }

    /// Sets an environment variable of the server.
    pub fn environment(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Etcd {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Starts one server.
    pub async fn start(&self) -> Result<Server> {
        start_with(self, Etcd::start_blocking).await
    }

    /// [`start`](Etcd::start) for callers that may block.
    pub fn start_blocking(&self) -> Result<Server> {
        with_retries(|| {
            let mut servers = self.launch(1)?;
            let server = servers.remove(0);
            server.wait_ready_blocking()?;
            Ok(server)
        })
    }

    /// Starts a cluster of three, which works as long as two of them do.
    pub async fn start_cluster(&self) -> Result<Group> {
        start_with(self, Etcd::start_cluster_blocking).await
    }

    /// [`start_cluster`](Etcd::start_cluster) for callers that may block.
    pub fn start_cluster_blocking(&self) -> Result<Group> {
        with_retries(|| {
            let servers = self.launch(CLUSTER)?;
            servers.iter().try_for_each(Server::wait_ready_blocking)?;
            Ok(Group::new("etcd://", servers))
        })
    }

    /// Starts a cluster of three whose members can be cut off from each other and live on.
    pub async fn start_split_cluster(&self) -> Result<SplitCluster> {
        SplitCluster::start(self, CLUSTER).await
    }

    /// Starts members that know each other; they become ready together.
    fn launch(&self, count: usize) -> Result<Vec<Server>> {
        let places: Result<Vec<Place>> = (0..count).map(|_| Place::reserve()).collect();
        self.launch_at(places?)
    }

    pub(super) fn launch_at(&self, places: Vec<Place>) -> Result<Vec<Server>> {
        let list = places.iter().enumerate();
        let list = list.map(|(index, place)| format!("{}={}", member_name(index), place.peer_url));
        let list = list.collect::<Vec<String>>().join(",");
        let plans = places.into_iter().enumerate();
        plans.map(|(index, place)| Server::launched(self.plan(index, place, &list)?)).collect()
    }

    fn plan(&self, index: usize, place: Place, list: &str) -> Result<Plan> {
        let folder = Folder::new()?;
        let mut environment = self.environment.clone();
        if cfg!(target_arch = "aarch64") {
            // etcd 3.4 refuses to run on this architecture by default.
            environment.push(("ETCD_UNSUPPORTED_ARCH".into(), "arm64".into()));
        }
        if let Some(gate) = place.gate {
            environment.push(("HTTP_PROXY".into(), format!("socks5://{gate}").into()));
        }
        let arguments = self.arguments(index, &place, list, &folder)?;
        let ports = place.ports;
        Ok(Plan {
            name: "etcd",
            url: format!("etcd://{}", ports[0].address()),
            program: programs::find("etcd", PACKAGE)?,
            arguments,
            environment,
            user: None,
            probe: Probe::Etcd { plain: self.tls.as_ref().map(|_| ports[2].address()) },
            polite: Signal::TERM,
            ports: ports.into(),
            folder,
        })
    }

    fn arguments(
        &self,
        index: usize,
        place: &Place,
        list: &str,
        folder: &Folder,
    ) -> Result<Vec<OsString>> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let [client, peer, metrics] = &place.ports;
        let client = format!("{scheme}://{}", client.address());
        let peer = format!("http://{}", peer.address());
        let mut arguments: Vec<OsString> = Vec::new();
        let mut set = |name: &str, value: &str| arguments.push(format!("--{name}={value}").into());
        set("name", &member_name(index));
        set("data-dir", &folder.path().join("data").to_string_lossy());
        set("listen-client-urls", &client);
        set("advertise-client-urls", &client);
        set("listen-peer-urls", &peer);
        set("initial-advertise-peer-urls", &place.peer_url);
        set("initial-cluster", list);
        // Ten heartbeats an election, as by default, but quicker.
        set("heartbeat-interval", "50");
        set("election-timeout", "500");
        if !self.fsync {
            set("unsafe-no-fsync", "true");
        }
        if let Some(tls) = &self.tls {
            let files = tls.certificates.copy_to(folder.path(), None)?;
            // Reports its health there without TLS.
            set("listen-metrics-urls", &format!("http://{}", metrics.address()));
            set("cert-file", &files.certificate.to_string_lossy());
            set("key-file", &files.key.to_string_lossy());
            if tls.mutual {
                set("client-cert-auth", "true");
                set("trusted-ca-file", &files.ca.to_string_lossy());
            }
        }
        arguments.extend(self.arguments.iter().cloned());
        Ok(arguments)
    }
}

/// Where a member is, and how it and the others find each other.
#[derive(Debug)]
pub(super) struct Place {
    /// For clients, for members, for metrics.
    ports: [Port; 3],
    /// The url by which the others know it.
    pub(super) peer_url: String,
    /// The SOCKS proxy through which it reaches the others; `None` if it dials them itself.
    pub(super) gate: Option<SocketAddr>,
}

impl Place {
    pub(super) fn reserve() -> Result<Place> {
        let ports = [Port::reserve()?, Port::reserve()?, Port::reserve()?];
        let peer_url = format!("http://{}", ports[1].address());
        Ok(Place { ports, peer_url, gate: None })
    }

    /// Where it listens for the others.
    pub(super) fn peer_address(&self) -> SocketAddr {
        self.ports[1].address()
    }
}

fn member_name(index: usize) -> String {
    format!("n{index}")
}
