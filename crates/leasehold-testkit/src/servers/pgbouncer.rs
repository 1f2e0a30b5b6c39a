//! PgBouncer: a proxy before a PostgreSQL server. It lends a connection for each transaction, or
//! for as long as a client is connected.
//!
//! It refuses to run as root, so root starts it as the user `postgres`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;

use super::group::start_with;
use super::probe::Probe;
use super::server::{Plan, Server};
use super::with_retries;
use crate::error::{Doing, Result};
use crate::folder::Folder;
use crate::ports::Port;
use crate::programs::{self, User};

/// The Debian package that has the proxy.
const PACKAGE: &str = "pgbouncer";

/// Starts a PgBouncer before a server without a password. Transaction mode is the default;
/// [`pool_sessions`](Pgbouncer::pool_sessions) changes it.
#[derive(Clone, Debug)]
pub struct Pgbouncer {
    server_port: u16,
    pool_size: u32,
    pool_mode: &'static str,
    ignored: &'static str,
}

impl Pgbouncer {
    /// A proxy before `server`, with a few connections to it.
    pub fn before(server: &Server) -> Pgbouncer {
        Pgbouncer {
            server_port: server.port(),
            pool_size: 4,
            pool_mode: "transaction",
            ignored: "",
        }
    }

    /// The most connections to the server.
    pub fn pool_size(mut self, connections: u32) -> Pgbouncer {
        self.pool_size = connections;
        self
    }

    /// Lends a connection for as long as a client is connected.
    pub fn pool_sessions(mut self) -> Pgbouncer {
        self.pool_mode = "session";
        self
    }

    /// Drops these parameters of start-up messages, separated by commas, instead of refusing them.
    pub fn ignore(mut self, parameters: &'static str) -> Pgbouncer {
        self.ignored = parameters;
        self
    }

    /// Starts the proxy.
    pub async fn start(&self) -> Result<Server> {
        start_with(self, Pgbouncer::start_blocking).await
    }

    /// [`start`](Pgbouncer::start) for callers that may block.
    pub fn start_blocking(&self) -> Result<Server> {
        with_retries(|| Server::ready(self.plan()?))
    }

    fn plan(&self) -> Result<Plan> {
        let (port, folder) = (Port::reserve()?, Folder::new()?);
        let user = User::instead_of_root("postgres", PACKAGE)?;
        let (settings, users) = (folder.path().join("pgbouncer.ini"), folder.path().join("users"));
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {}\nunix_socket_dir =\nauth_type = trust\nauth_file = {}\n\
             pool_mode = {}\ndefault_pool_size = {}\nmax_client_conn = 500\n\
             ignore_startup_parameters = {}\n",
            self.server_port,
            port.number(),
            users.display(),
            self.pool_mode,
            self.pool_size,
            self.ignored,
        );
        let doing = || "write the settings of `pgbouncer`".to_owned();
        fs::write(&settings, text).doing(doing)?;
        fs::write(&users, "\"postgres\" \"\"\n").doing(doing)?;
        for (path, mode) in [(folder.path(), 0o711), (&settings, 0o644), (&users, 0o644)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).doing(doing)?;
        }
        Ok(Plan {
            name: "pgbouncer",
            url: format!("postgres://postgres@{}/postgres", port.address()),
            program: programs::find("pgbouncer", PACKAGE)?,
            arguments: vec![settings.into()],
            environment: Vec::new(),
            user,
            probe: Probe::Postgres,
            polite: Signal::INT,
            ports: vec![port],
            folder,
        })
    }
}
