//! One running server: its process, port and folder, and the faults a test can cause.
//!
//! What is started, and how it is told that it is ready, is left to the engines' modules, which
//! fill in a [`Plan`].

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::READY_LIMIT;
use super::probe::Probe;
use crate::error::{Doing, Error, Result, unblock};
use crate::folder::Folder;
use crate::ports::Port;
use crate::process::{POLL, Process};
use crate::programs::User;

/// A server that was asked politely gets this long before it is killed.
const POLITE_LIMIT: Duration = Duration::from_secs(10);

/// How much of a log goes into an error: the reason is at the end.
const LOG_TAIL_BYTES: usize = 4096;

/// Everything that is needed to start a server, and to start it again.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) name: &'static str,
    pub(super) url: String,
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) user: Option<User>,
    pub(super) probe: Probe,
    /// The signal that makes the server end cleanly.
    pub(super) polite: Signal,
    /// The port for clients first, then those that servers use among themselves.
    pub(super) ports: Vec<Port>,
    pub(super) folder: Folder,
}

/// A server that runs as a child process.
///
/// Dropping it kills the process and removes its data. Keep it in a test rather than in a static:
/// statics are not dropped, so the process ends with the test process, but the folder stays until
/// the next test process removes it.
pub struct Server {
    inner: Arc<Inner>,
}

/// Shared with blocking work that an async caller may have stopped waiting for.
struct Inner {
    plan: Plan,
    process: Mutex<Option<Process>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address may hold a password.
        formatter
            .debug_struct("Server")
            .field("name", &self.name())
            .field("port", &self.port())
            .field("pid", &self.pid())
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Starts the process; it may not be ready yet.
    pub(super) fn launched(plan: Plan) -> Result<Server> {
        assert!(!plan.ports.is_empty(), "a server listens on a port");
        let server = Server { inner: Arc::new(Inner { plan, process: Mutex::new(None) }) };
        server.launch()?;
        Ok(server)
    }

    /// Starts the process and waits until it is ready.
    pub(super) fn ready(plan: Plan) -> Result<Server> {
        let server = Server::launched(plan)?;
        server.wait_ready_blocking()?;
        Ok(server)
    }

    /// The server's kind, for messages.
    pub fn name(&self) -> &'static str {
        self.inner.plan.name
    }

    /// The address in the form of leasehold's `--url`, with the password when there is one.
    pub fn url(&self) -> &str {
        &self.inner.plan.url
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.inner.plan.ports[0].number()
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.inner.plan.ports[0].address()
    }

    /// The address for who reads the store without TLS; it is that for clients where there is none.
    pub fn plain_address(&self) -> SocketAddr {
        self.inner.plan.probe.plain().unwrap_or(self.address())
    }

    /// The folder with the server's data and log.
    pub fn folder(&self) -> &Path {
        self.inner.plan.folder.path()
    }

    /// The process number; `None` while the server does not run.
    pub fn pid(&self) -> Option<u32> {
        let mut process = self.inner.process();
        let process = process.as_mut()?;
        matches!(process.try_wait(), Ok(None)).then(|| process.id())
    }

    /// The end of what the server wrote to its log.
    pub fn log(&self) -> String {
        self.inner.log()
    }

    /// Ends the server with `SIGKILL`, as a crash would; it may have ended already.
    ///
    /// Returns when no process of it is left.
    pub fn kill(&self) -> Result<()> {
        self.inner.kill()
    }

    /// Ends the server cleanly, so that what it keeps is written.
    pub fn shut_down(&self) -> Result<()> {
        self.inner.shut_down()
    }

    /// Stops the server with `SIGSTOP`: connections stay, nothing is answered.
    ///
    /// Returns when no thread of it runs any more.
    pub fn stop_process(&self) -> Result<()> {
        self.inner.signal("stop", Process::stop_family)
    }

    /// Lets a stopped server go on with `SIGCONT`.
    pub fn continue_process(&self) -> Result<()> {
        self.inner.signal("continue", Process::continue_family)
    }

    /// Kills the server if it runs, and starts it again on the same port with the same data.
    ///
    /// # Cancel safety
    ///
    /// The restart goes on when the caller stops waiting for it.
    pub async fn restart(&self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        unblock(move || inner.restart()).await
    }

    /// [`restart`](Server::restart) for callers that may block.
    pub fn restart_blocking(&self) -> Result<()> {
        self.inner.restart()
    }

    /// Starts a server that does not run, without waiting until it is ready.
    ///
    /// For members of a group that need the others to become ready.
    ///
    /// # Panics
    ///
    /// When the server runs already.
    pub fn launch(&self) -> Result<()> {
        self.inner.launch()
    }

    /// Waits until the server answers.
    pub async fn wait_ready(&self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        unblock(move || inner.wait_ready()).await
    }

    /// [`wait_ready`](Server::wait_ready) for callers that may block.
    pub fn wait_ready_blocking(&self) -> Result<()> {
        self.inner.wait_ready()
    }

    /// Asks once whether the server answers; the error says what is missing.
    pub fn check_ready(&self) -> Result<()> {
        let plan = &self.inner.plan;
        let checked = plan.probe.check(self.address());
        checked.doing(|| format!("get a ready answer from `{}`", plan.name))
    }

    /// A port that servers use among themselves, by its place in the plan.
    pub(super) fn other_port(&self, index: usize) -> u16 {
        self.inner.plan.ports[index].number()
    }

    pub(super) fn fail_if_ended(&self) -> Result<()> {
        self.inner.fail_if_ended()
    }

    pub(super) fn probe(&self) -> &Probe {
        &self.inner.plan.probe
    }
}

impl Inner {
    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        // A panic elsewhere leaves the process as it was: the lock guards no half-made change.
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log_path(&self) -> PathBuf {
        self.plan.folder.path().join("log")
    }

    fn log(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        let tail = &bytes[bytes.len().saturating_sub(LOG_TAIL_BYTES)..];
        String::from_utf8_lossy(tail).into_owned()
    }

    fn launch(&self) -> Result<()> {
        let mut process = self.process();
        if let Some(old) = process.as_mut() {
            let ended = old.try_wait().doing(|| self.what("look after"))?;
            assert!(ended.is_some(), "`{}` is running already", self.plan.name);
        }
        let command = self.command()?;
        *process = Some(Process::spawn(command).doing(|| self.what("start"))?);
        Ok(())
    }

    fn command(&self) -> Result<Command> {
        let plan = &self.plan;
        let log = File::options().create(true).append(true).open(self.log_path());
        let log = log.doing(|| self.what("open the log of"))?;
        let errors = log.try_clone().doing(|| self.what("open the log of"))?;
        let mut command = Command::new(&plan.program);
        // The environment is cleared because the servers take settings from it (ETCD_*, PG*). The
        // folder is one that every user may enter.
        command
            .args(&plan.arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs(plan.environment.iter().map(|(key, value)| (key, value)))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors);
        if let Some(user) = plan.user {
            command.uid(user.uid).gid(user.gid);
        }
        Ok(command)
    }

    fn wait_ready(&self) -> Result<()> {
        let address = self.plan.ports[0].address();
        let started = Instant::now();
        loop {
            let answer = self.plan.probe.check(address);
            // Looked at after the answer: an answer can only have been this server's if it runs.
            self.fail_if_ended()?;
            let Err(last) = answer else { return Ok(()) };
            let waited = started.elapsed();
            if waited >= READY_LIMIT {
                let (server, log) = (self.plan.name.to_owned(), self.log());
                return Err(Error::NotReady { server, waited, last: last.to_string(), log });
            }
            std::thread::sleep(POLL);
        }
    }

    fn fail_if_ended(&self) -> Result<()> {
        match self.exit_status()? {
            None => Ok(()),
            Some(status) => {
                let (server, log) = (self.plan.name.to_owned(), self.log());
                Err(Error::EarlyExit { server, status, log })
            }
        }
    }

    fn exit_status(&self) -> Result<Option<ExitStatus>> {
        match self.process().as_mut() {
            Some(process) => process.try_wait().doing(|| self.what("look after")),
            None => Err(Error::NotRunning { name: self.plan.name.to_owned() }),
        }
    }

    fn restart(&self) -> Result<()> {
        self.kill()?;
        self.launch()?;
        self.wait_ready()
    }

    fn kill(&self) -> Result<()> {
        match self.process().as_mut() {
            Some(process) => process.kill_family().doing(|| self.what("kill")),
            None => Ok(()),
        }
    }

    fn shut_down(&self) -> Result<()> {
        if let Some(process) = self.process().as_mut() {
            process.continue_family().doing(|| self.what("continue"))?;
            process.signal(self.plan.polite).doing(|| self.what("end"))?;
            process.wait(POLITE_LIMIT).doing(|| self.what("wait for"))?;
        }
        self.kill()
    }

    fn signal(
        &self,
        verb: &str,
        send: impl FnOnce(&mut Process) -> std::io::Result<bool>,
    ) -> Result<()> {
        let mut process = self.process();
        let sent = match process.as_mut() {
            Some(process) => send(process).doing(|| self.what(verb))?,
            None => false,
        };
        if sent { Ok(()) } else { Err(Error::NotRunning { name: self.plan.name.to_owned() }) }
    }

    fn what(&self, verb: &str) -> String {
        format!("{verb} `{}`", self.plan.name)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Nothing can be done about an error here; the death signal is the second net.
        let _ = self.kill();
    }
}
