//! ZooKeeper: options, one server, and an ensemble of three.
//!
//! The harness starts `java` directly, because the package's script would stay as a parent.

use std::ffi::OsString;
use std::fs;

use rustix::process::Signal;

use super::group::{Group, start_with};
use super::probe::Probe;
use super::server::{Plan, Server};
use super::with_retries;
use crate::certificates::{Certificates, Tls};
use crate::clock::Clock;
use crate::error::{Doing, Result};
use crate::folder::Folder;
use crate::ports::Port;
use crate::programs;

const JAR: (&str, &str) = ("/usr/share/java/zookeeper.jar", "zookeeper");
/// Without this file the server writes no log.
const LOG_JAR: (&str, &str) = ("/usr/share/java/slf4j-simple.jar", "libslf4j-java");
/// The part of Netty that TLS needs and the jar above does not name itself.
const NETTY_JAR: (&str, &str) = ("/usr/share/java/netty-codec.jar", "libnetty-java");
const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
const ENSEMBLE: usize = 3;

/// Short ticks make sessions of a second possible and elections quick.
///
/// ZooKeeper's default is 60 connections for each address. Here there is no such limit: all tests
/// of a program share one server, and all their clients have one address.
const SETTINGS: &str = "tickTime=500\n\
                        minSessionTimeout=1000\n\
                        maxSessionTimeout=60000\n\
                        initLimit=20\n\
                        syncLimit=10\n\
                        clientPortAddress=127.0.0.1\n\
                        admin.enableServer=false\n\
                        4lw.commands.whitelist=*\n\
                        maxClientCnxns=0\n";

/// Starts ZooKeeper servers; the methods set options.
///
/// It does not wait for the disk by default; see [`fsync`](Zookeeper::fsync). Data survives a kill
/// of the server either way.
#[derive(Clone, Debug, Default)]
pub struct Zookeeper {
    fsync: bool,
    tls: Option<Tls>,
    settings: Vec<(String, String)>,
    environment: Vec<(OsString, OsString)>,
}

impl Zookeeper {
    /// A server with the harness's defaults.
    pub fn new() -> Zookeeper {
        Zookeeper::default()
    }

    /// Whether a change waits for the disk, as it would in production; off by default.
    pub fn fsync(mut self, on: bool) -> Zookeeper {
        self.fsync = on;
        self
    }

    /// Speaks TLS with clients; members still talk in the clear among themselves.
    ///
    /// It also listens without TLS, on a port that only the harness knows.
    pub fn tls(mut self, certificates: &Certificates) -> Zookeeper {
        self.tls = Some(Tls { certificates: certificates.clone(), mutual: false });
        self
    }

    /// [`tls`](Zookeeper::tls), and turns away clients that show no certificate of the authority.
    pub fn mutual_tls(mut self, certificates: &Certificates) -> Zookeeper {
        self.tls = Some(Tls { certificates: certificates.clone(), mutual: true });
        self
    }

    /// Adds a line to the server's file, for example `tickTime`, over the harness's own.
    pub fn setting(mut self, name: &str, value: &str) -> Zookeeper {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets an environment variable of the server.
    pub fn environment(
        mut self,
        name: impl Into<OsString>,
        value: impl Into<OsString>,
    ) -> Zookeeper {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Puts the server on a clock that the test moves and stops.
    pub fn clock(mut self, clock: &Clock) -> Zookeeper {
        let variables = clock.environment().map(|(name, value)| (name.into(), value.into()));
        self.environment.extend(variables);
        self
    }

    /// Starts one server.
    pub async fn start(&self) -> Result<Server> {
        start_with(self, Zookeeper::start_blocking).await
    }

    /// [`start`](Zookeeper::start) for callers that may block.
    pub fn start_blocking(&self) -> Result<Server> {
        with_retries(|| Server::ready(self.plan(vec![Port::reserve()?], "")?))
    }

    /// Starts an ensemble of three, which works as long as two of them do.
    pub async fn start_ensemble(&self) -> Result<Group> {
        start_with(self, Zookeeper::start_ensemble_blocking).await
    }

    /// [`start_ensemble`](Zookeeper::start_ensemble) for callers that may block.
    pub fn start_ensemble_blocking(&self) -> Result<Group> {
        with_retries(|| self.start_ensemble_once())
    }

    fn start_ensemble_once(&self) -> Result<Group> {
        let mut members = Vec::new();
        let mut list = String::new();
        for id in 1..=ENSEMBLE {
            let ports = [Port::reserve()?, Port::reserve()?, Port::reserve()?];
            let (peer, election) = (ports[1].number(), ports[2].number());
            list.push_str(&format!("server.{id}=127.0.0.1:{peer}:{election}\n"));
            members.push((id, ports));
        }
        let mut servers = Vec::new();
        for (id, ports) in members {
            let plan = self.plan(ports.into(), &list)?;
            let file = plan.folder.path().join("myid");
            fs::write(&file, id.to_string()).doing(|| format!("write {}", file.display()))?;
            servers.push(Server::launched(plan)?);
        }
        servers.iter().try_for_each(Server::wait_ready_blocking)?;
        Ok(Group::new("zk://", servers))
    }

    fn plan(&self, mut ports: Vec<Port>, members: &str) -> Result<Plan> {
        let folder = Folder::new()?;
        let file = folder.path().join("zoo.cfg");
        let mut text = self.file(&folder, members);
        let mut plain = None;
        if let Some(tls) = &self.tls {
            let port = Port::reserve()?;
            text.push_str(&format!("clientPort={}\n", port.number()));
            text.push_str(&tls_lines(tls, &ports[0], &folder)?);
            plain = Some(port.address());
            ports.push(port);
        } else {
            text.push_str(&format!("clientPort={}\n", ports[0].number()));
        }
        fs::write(&file, text).doing(|| format!("write {}", file.display()))?;
        let jar = programs::require(JAR.0, JAR.1)?;
        let log_jar = programs::require(LOG_JAR.0, LOG_JAR.1)?;
        let mut arguments: Vec<OsString> =
            ["-Xms32m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
                .map(OsString::from)
                .into();
        arguments.push("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn".into());
        // By default Java keeps a file of numbers for its tools in the shared temporary folder.
        arguments.push("-XX:-UsePerfData".into());
        let netty = match &self.tls {
            Some(_) => format!(":{}", programs::require(NETTY_JAR.0, NETTY_JAR.1)?),
            None => String::new(),
        };
        arguments.extend(["-cp".into(), format!("{jar}:{log_jar}{netty}").into()]);
        arguments.extend([MAIN.into(), file.into()]);
        Ok(Plan {
            name: "zookeeper",
            url: format!("zk://{}", ports[0].address()),
            program: programs::find("java", "default-jre-headless")?,
            arguments,
            environment: self.environment.clone(),
            user: None,
            probe: Probe::Zookeeper { plain },
            polite: Signal::TERM,
            ports,
            folder,
        })
    }

    /// Of two lines with the same name the later one counts.
    fn file(&self, folder: &Folder, members: &str) -> String {
        let force_sync = if self.fsync { "yes" } else { "no" };
        let folder = folder.path().display();
        let mut text = format!("{SETTINGS}forceSync={force_sync}\ndataDir={folder}\n{members}");
        for (name, value) in &self.settings {
            text.push_str(&format!("{name}={value}\n"));
        }
        text
    }
}

fn tls_lines(tls: &Tls, port: &Port, folder: &Folder) -> Result<String> {
    let files = tls.certificates.copy_to(folder.path(), None)?;
    Ok(format!(
        "secureClientPort={port}\n\
         secureClientPortAddress=127.0.0.1\n\
         serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
         ssl.keyStore.type=PEM\n\
         ssl.keyStore.location={both}\n\
         ssl.trustStore.type=PEM\n\
         ssl.trustStore.location={ca}\n\
         ssl.clientAuth={clients}\n",
        port = port.number(),
        both = files.in_one_file()?.display(),
        ca = files.ca.display(),
        clients = if tls.mutual { "need" } else { "none" },
    ))
}
