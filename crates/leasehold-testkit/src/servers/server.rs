//! One running server: its process, port and folder, and the faults a test can cause.
//!
//! The engines' modules decide what to start and how to see that it is ready: they fill in a
//! [`Plan`].

use std::cell::Cell;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::READY_LIMIT;
use super::probe::Probe;
use crate::error::{Doing, Error, Result, unblock};
use crate::folder::Folder;
use crate::ports::Port;
use crate::process::{POLL, Process};
use crate::programs::User;

/// How long a server may take to end after a polite signal before the harness kills it.
const POLITE_LIMIT: Duration = Duration::from_secs(10);

/// How much of a log goes into an error: the reason is at the end.
const LOG_TAIL_BYTES: usize = 4096;

/// How many lines of a server's log a failed test shows.
const LOG_LINES_SHOWN: usize = 8;

/// The servers that several tests share.
static SHARED: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

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
/// Dropping it kills the process and removes its data. Keep it in a test rather than in a static.
/// Statics are not dropped: the process ends with the test process, but the folder stays until the
/// next test process removes it.
pub struct Server {
    inner: Arc<Inner>,
}

/// Blocking work shares it, whose async caller may have stopped waiting.
struct Inner {
    plan: Plan,
    /// Words that stand on the command line behind those of the plan.
    added: Mutex<Vec<OsString>>,
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
        let (added, process) = (Mutex::default(), Mutex::default());
        let server = Server { inner: Arc::new(Inner { plan, added, process }) };
        server.launch()?;
        Ok(server)
    }

    /// Starts the process and waits until it is ready.
    pub(super) fn ready(plan: Plan) -> Result<Server> {
        let server = Server::launched(plan)?;
        server.wait_ready_blocking()?;
        Ok(server)
    }

    /// The same server, for work that goes on when its caller stops waiting.
    pub(super) fn again(&self) -> Server {
        Server { inner: Arc::clone(&self.inner) }
    }

    /// Marks this server as shared by several tests: a test that panics shows the end of its log. A
    /// server of one test shows its log when the panic drops the server.
    pub fn shared(self) -> Server {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                before(panic);
                show_shared_logs();
            }));
        });
        shared_servers().push(Arc::downgrade(&self.inner));
        self
    }

    /// The server's kind, for messages.
    pub fn name(&self) -> &'static str {
        self.inner.plan.name
    }

    /// The address in the form of leasehold's `--url`, with the password when there is one.
    pub fn url(&self) -> &str {
        &self.inner.plan.url
    }

    /// Adds a word to the command line, from the next start on.
    pub fn add_argument(&self, word: impl Into<OsString>) {
        self.inner.added().push(word.into());
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.inner.plan.ports[0].number()
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.inner.plan.ports[0].address()
    }

    /// The address for readers of the store without TLS; without TLS for clients it is the address
    /// for clients.
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

    /// Ends the server cleanly, so that it writes what it keeps.
    pub fn shut_down(&self) -> Result<()> {
        self.inner.shut_down()
    }

    /// Stops the server with `SIGSTOP`: connections stay, and the server answers nothing.
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
    /// It is for members of a group that need the others to become ready.
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

    /// Asks once whether the server answers; the error names what is missing.
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
    fn added(&self) -> MutexGuard<'_, Vec<OsString>> {
        self.added.lock().unwrap_or_else(PoisonError::into_inner)
    }

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

    /// Shows the last lines of the log, for a test that failed.
    fn show_log(&self) {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let (name, port) = (self.plan.name, self.plan.ports[0].number());
        eprintln!("-- the last lines of the log of `{name}` on port {port}:");
        for line in &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..] {
            eprintln!("   {line}");
        }
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
        // The environment is cleared because the servers take settings from it (`ETCD_*`, `PG*`).
        // Every user may enter the current folder.
        command
            .args(&plan.arguments)
            .args(self.added().iter())
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
            // Checked after the answer: only a running server can have given the answer.
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

fn shared_servers() -> MutexGuard<'static, Vec<Weak<Inner>>> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shows the end of the logs of all [`shared`](Server::shared) servers.
pub fn show_shared_logs() {
    let servers: Vec<Arc<Inner>> = shared_servers().iter().filter_map(Weak::upgrade).collect();
    servers.iter().for_each(|server| server.show_log());
}

thread_local! {
    /// Whether the test of this thread has failed without a panic.
    static HAS_FAILED: Cell<bool> = const { Cell::new(false) };
}

/// Sets whether the test of this thread has failed. Servers that end after a failure show the end
/// of their logs, as they do after a panic.
pub fn set_failed(failed: bool) {
    HAS_FAILED.set(failed);
}

impl Drop for Inner {
    fn drop(&mut self) {
        if std::thread::panicking() || HAS_FAILED.get() {
            self.show_log();
        }
        // Nothing can be done about an error here; the death signal is the second net.
        let _ = self.kill();
    }
}
