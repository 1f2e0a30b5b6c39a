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

use super::group::{Group, start_with};
use super::probe::{Login, Probe};
use super::server::{Plan, Server};
use super::{encoded, with_retries};
use crate::certificates::{Certificates, Tls};
use crate::clock::Clock;
use crate::error::{Doing, Error, Result, unblock};
use crate::folder::{Folder, POSTGRES_DATA};
use crate::ports::Port;
use crate::process::Process;
use crate::programs::{self, User};

/// The Debian package that has the server.
const PACKAGE: &str = "postgresql";

/// The first user, who may do everything; also the name of the first database.
const SUPERUSER: &str = "postgres";

/// A server on this machine lets clients in at once; a stopped one never does.
const ANSWER_LIMIT_S: &str = "2";

/// `initdb` takes half a second; the rest is for a busy machine.
const INITDB_LIMIT: Duration = Duration::from_secs(60);

/// A copy of a small database takes a second, and waits for a checkpoint.
const BACKUP_LIMIT: Duration = Duration::from_secs(60);

/// Starts a PostgreSQL server; the methods set options.
///
/// Its user and database are `postgres`, without a password. It does not wait for the disk by
/// default; see [`fsync`](Postgres::fsync). Data survives a kill of the server either way, because
/// the operating system goes on.
#[derive(Clone, Debug, Default)]
pub struct Postgres {
    fsync: bool,
    password: Option<Login>,
    tls: Option<Tls>,
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

    /// Asks clients for a password, by `scram-sha-256`; this one is for the user `postgres`.
    pub fn password(mut self, password: &str) -> Postgres {
        let (user, password) = (SUPERUSER.to_owned(), password.to_owned());
        self.password = Some(Login { user, password });
        self
    }

    /// Speaks only TLS with clients.
    pub fn tls(mut self, certificates: &Certificates) -> Postgres {
        self.tls = Some(Tls { certificates: certificates.clone(), mutual: false });
        self
    }

    /// [`tls`](Postgres::tls), and turns away clients that show no certificate of the authority.
    pub fn mutual_tls(mut self, certificates: &Certificates) -> Postgres {
        self.tls = Some(Tls { certificates: certificates.clone(), mutual: true });
        self
    }

    /// Sets a server setting, for example `max_connections`, over the harness's own.
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

    /// Puts the server on a clock that the test moves and stops.
    pub fn clock(mut self, clock: &Clock) -> Postgres {
        let variables = clock.environment().map(|(name, value)| (name.into(), value.into()));
        self.environment.extend(variables);
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

    /// Starts a primary and a standby of it. The primary confirms a commit only when the standby
    /// has it too, and waits as long as there is none.
    pub async fn start_with_standby(&self) -> Result<Group> {
        start_with(self, Postgres::start_with_standby_blocking).await
    }

    /// [`start_with_standby`](Postgres::start_with_standby) for callers that may block.
    pub fn start_with_standby_blocking(&self) -> Result<Group> {
        let options = self
            .clone()
            .setting("synchronous_standby_names", "*")
            // A standby that lost its primary asks for it again this soon.
            .setting("wal_retrieve_retry_interval", "100ms");
        let primary = options.start_blocking()?;
        let standby = options.start_blocking()?;
        standby.follow_blocking(&primary)?;
        Ok(Group::new(&format!("postgres://{}@", options.url_login()), vec![primary, standby]))
    }

    fn plan(&self) -> Result<Plan> {
        let (port, folder) = (Port::reserve()?, Folder::new()?);
        let user = User::instead_of_root("postgres", PACKAGE)?;
        let data = folder.path().join(POSTGRES_DATA);
        make_data_folder(folder.path(), &data, user)?;
        init_database(&data, user, self.password.as_ref())?;
        // Replaces the initial rules; the file keeps its owner.
        let rules = data.join("pg_hba.conf");
        fs::write(&rules, self.rules()).doing(|| format!("write {}", rules.display()))?;
        Ok(Plan {
            name: "postgres",
            url: format!("postgres://{}@{}/postgres", self.url_login(), port.address()),
            program: programs::find("postgres", PACKAGE)?,
            arguments: self.arguments(&port, &data, user)?,
            environment: self.environment.clone(),
            user,
            probe: Probe::Postgres,
            // TERM would wait for the clients to leave.
            polite: Signal::INT,
            ports: vec![port],
            folder,
        })
    }

    /// The part of an address before the host.
    fn url_login(&self) -> String {
        match &self.password {
            Some(login) => format!("{SUPERUSER}:{}", encoded(&login.password)),
            None => SUPERUSER.to_owned(),
        }
    }

    /// The rules for logins. The harness and tests log in over the socket file, as the one user
    /// that may enter the data folder.
    fn rules(&self) -> String {
        let way = if self.tls.is_some() { "hostssl" } else { "host" };
        let method = if self.password.is_some() { "scram-sha-256" } else { "trust" };
        let mutual = self.tls.as_ref().is_some_and(|tls| tls.mutual);
        let certificate = if mutual { " clientcert=verify-ca" } else { "" };
        format!(
            "local all,replication all trust\n{way} all all 127.0.0.1/32 {method}{certificate}\n"
        )
    }

    fn arguments(&self, port: &Port, data: &Path, user: Option<User>) -> Result<Vec<OsString>> {
        let port = port.number().to_string().into();
        let mut arguments: Vec<OsString> =
            vec!["-D".into(), data.into(), "-p".into(), port, "-k".into(), data.into()];
        let fsync = if self.fsync { "on" } else { "off" };
        let own = [("listen_addresses", "127.0.0.1"), ("max_connections", "200"), ("fsync", fsync)];
        let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let tls = self.tls_settings(data, user)?;
        for (name, value) in own.iter().chain(&tls).chain(&self.settings) {
            arguments.extend(["-c".into(), format!("{name}={value}").into()]);
        }
        Ok(arguments)
    }

    fn tls_settings(&self, data: &Path, user: Option<User>) -> Result<Vec<(String, String)>> {
        let Some(tls) = &self.tls else { return Ok(Vec::new()) };
        let files = tls.certificates.copy_to(data, user)?;
        let mut settings = vec![("ssl".to_owned(), "on".to_owned())];
        let mut file = |name: &str, path: &Path| {
            settings.push((name.to_owned(), path.to_string_lossy().into_owned()));
        };
        file("ssl_cert_file", &files.certificate);
        file("ssl_key_file", &files.key);
        if tls.mutual {
            file("ssl_ca_file", &files.ca);
        }
        Ok(settings)
    }
}

impl Server {
    /// Makes this PostgreSQL server a standby of another one. It ends if it runs, and loses its
    /// data.
    ///
    /// # Cancel safety
    ///
    /// The change goes on when the caller stops waiting for it.
    pub async fn follow(&self, primary: &Server) -> Result<()> {
        let (standby, primary) = (self.again(), primary.again());
        unblock(move || standby.follow_blocking(&primary)).await
    }

    fn follow_blocking(&self, primary: &Server) -> Result<()> {
        self.kill()?;
        let data = self.folder().join(POSTGRES_DATA);
        let user = User::instead_of_root("postgres", PACKAGE)?;
        fs::remove_dir_all(&data).doing(|| format!("remove {}", data.display()))?;
        make_data_folder(self.folder(), &data, user)?;
        let mut command = Command::new(programs::find("pg_basebackup", "postgresql-client")?);
        command
            .args(["--username", SUPERUSER, "--port", &primary.port().to_string(), "--host"])
            .arg(primary.folder().join(POSTGRES_DATA))
            .args(["--checkpoint", "fast", "--no-sync", "--write-recovery-conf", "--pgdata"])
            .arg(&data);
        fill("pg_basebackup", command, &data, user, BACKUP_LIMIT)?;
        self.launch()?;
        self.wait_ready_blocking()
    }

    /// Runs statements on a PostgreSQL server, with `psql` over its socket file as its superuser.
    ///
    /// It is for faults (`pg_terminate_backend`), for roles, and for reading what is stored. Rows
    /// come back one in each line, with `|` between the columns.
    pub fn sql(&self, statements: &str) -> Result<String> {
        let doing = || "run `psql`".to_owned();
        let mut command = Command::new(programs::find("psql", "postgresql-client")?);
        command
            .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"])
            .args(["--set", "ON_ERROR_STOP=1", "--username", SUPERUSER, "--host"])
            .arg(self.folder().join(POSTGRES_DATA))
            .args(["--port", &self.port().to_string(), "--command", statements, "postgres"])
            .env("PGCONNECT_TIMEOUT", ANSWER_LIMIT_S)
            .stdin(Stdio::null());
        let output = command.output().doing(doing)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        Err(Error::Refused {
            server: self.name().to_owned(),
            request: statements.to_owned(),
            answer: text(&output.stderr),
        })
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

fn init_database(data: &Path, user: Option<User>, login: Option<&Login>) -> Result<()> {
    let mut command = Command::new(programs::find("initdb", PACKAGE)?);
    command
        .arg("-D")
        .arg(data)
        .args(["-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--no-locale"])
        .args(["--no-sync", "--no-instructions"]);
    if let Some(login) = login {
        let file = data.with_extension("password");
        fs::write(&file, &login.password).doing(|| "write a password for `initdb`".to_owned())?;
        if let Some(user) = user {
            let doing = || "give the password to the user postgres".to_owned();
            chown(&file, Some(user.uid), Some(user.gid)).doing(doing)?;
        }
        command.arg("--pwfile").arg(file);
    }
    fill("initdb", command, data, user, INITDB_LIMIT)
}

/// Runs a program that fills a data folder, as the user who owns it.
fn fill(
    name: &str,
    mut command: Command,
    data: &Path,
    user: Option<User>,
    limit: Duration,
) -> Result<()> {
    let log = data.with_extension(format!("{name}.log"));
    let open = || fs::File::options().create(true).append(true).open(&log);
    let doing = || format!("run `{name}`");
    command
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
    let status = process.wait(limit).doing(doing)?;
    process.kill_family().doing(doing)?;
    match status {
        Some(status) if status.success() => Ok(()),
        status => Err(Error::Refused {
            server: name.to_owned(),
            request: format!("fill {}", data.display()),
            answer: format!("{status:?}: {}", fs::read_to_string(&log).unwrap_or_default()),
        }),
    }
}
