//! PostgreSQL: options and one server, with a data folder made by `initdb`.
//!
//! It refuses to run as root, so root starts it as the user `postgres`.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use super::group::start_with;
use super::probe::Probe;
use super::server::{Plan, Server};
use super::with_retries;
use crate::error::{Doing, Error, Result};
use crate::folder::{Folder, POSTGRES_DATA};
use crate::ports::Port;
use crate::process::Process;
use crate::programs::{self, User};

/// The Debian package that has the server.
const PACKAGE: &str = "postgresql";

/// `initdb` takes half a second; this is for a machine with a lot else to do.
const INITDB_LIMIT: Duration = Duration::from_secs(60);

/// Starts a PostgreSQL server; the methods set options.
///
/// Its user and database are `postgres`, without a password. It does not wait for the disk unless
/// [`fsync`](Postgres::fsync) says so; data survives a kill of the server either way, because the
/// operating system goes on.
#[derive(Clone, Debug, Default)]
pub struct Postgres {
    fsync: bool,
    settings: Vec<(String, String)>,
    environment: Vec<(OsString, OsString)>,
}

impl Postgres {
    /// A server with the harness's defaults.
    pub fn new() -> Postgres {
        Postgres::default()
    }

    /// Whether a commit waits for the disk, as it would in production; off by default.
    pub fn fsync(mut self, on: bool) -> Postgres {
        self.fsync = on;
        self
    }

    /// Sets a server setting, `max_connections` for instance, over the harness's own.
    pub fn setting(mut self, name: &str, value: &str) -> Postgres {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets an environment variable of the server.
    pub fn environment(
        mut self,
        name: impl Into<OsString>,
        value: impl Into<OsString>,
    ) -> Postgres {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Makes a data folder and starts the server.
    pub async fn start(&self) -> Result<Server> {
        start_with(self, Postgres::start_blocking).await
    }

    /// [`start`](Postgres::start) for callers that may block.
    pub fn start_blocking(&self) -> Result<Server> {
        with_retries(|| Server::ready(self.plan()?))
    }

    fn plan(&self) -> Result<Plan> {
        let (port, folder) = (Port::reserve()?, Folder::new()?);
        let user = User::instead_of_root("postgres", PACKAGE)?;
        let data = folder.path().join(POSTGRES_DATA);
        make_data_folder(folder.path(), &data, user)?;
        init_database(&data, user)?;
        Ok(Plan {
            name: "postgres",
            url: format!("postgres://postgres@{}/postgres", port.address()),
            program: programs::find("postgres", PACKAGE)?,
            arguments: self.arguments(&port, &data),
            environment: self.environment.clone(),
            user,
            probe: Probe::Postgres,
            // TERM would wait for the clients to leave.
            polite: Signal::INT,
            ports: vec![port],
            folder,
        })
    }

    fn arguments(&self, port: &Port, data: &Path) -> Vec<OsString> {
        let data = OsString::from(data);
        let port = port.number().to_string().into();
        let mut arguments: Vec<OsString> =
            vec!["-D".into(), data.clone(), "-p".into(), port, "-k".into(), data];
        let fsync = if self.fsync { "on" } else { "off" };
        let own = [("listen_addresses", "127.0.0.1"), ("max_connections", "200"), ("fsync", fsync)];
        let given = self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in own.into_iter().chain(given) {
            arguments.extend(["-c".into(), format!("{name}={value}").into()]);
        }
        arguments
    }
}

/// The server's user must be able to pass through the folder, and owns the data in it.
fn make_data_folder(folder: &Path, data: &Path, user: Option<User>) -> Result<()> {
    let doing = || format!("make {} for the user postgres", data.display());
    fs::create_dir(data).doing(doing)?;
    fs::set_permissions(data, Permissions::from_mode(0o700)).doing(doing)?;
    if let Some(user) = user {
        fs::set_permissions(folder, Permissions::from_mode(0o711)).doing(doing)?;
        chown(data, Some(user.uid), Some(user.gid)).doing(doing)?;
    }
    Ok(())
}

fn init_database(data: &Path, user: Option<User>) -> Result<()> {
    let log = data.with_extension("initdb.log");
    let open = || fs::File::options().create(true).append(true).open(&log);
    let doing = || "run `initdb`".to_owned();
    let mut command = Command::new(programs::find("initdb", PACKAGE)?);
    command
        .arg("-D")
        .arg(data)
        .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale"])
        .args(["--no-sync", "--no-instructions"])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(open().doing(doing)?)
        .stderr(open().doing(doing)?);
    if let Some(user) = user {
        command.uid(user.uid).gid(user.gid);
    }
    let mut process = Process::spawn(command).doing(doing)?;
    let status = process.wait(INITDB_LIMIT).doing(doing)?;
    process.kill_family().doing(doing)?;
    match status {
        Some(status) if status.success() => Ok(()),
        status => Err(Error::Refused {
            server: "initdb".to_owned(),
            request: format!("make {}", data.display()),
            answer: format!("{status:?}: {}", fs::read_to_string(&log).unwrap_or_default()),
        }),
    }
}
