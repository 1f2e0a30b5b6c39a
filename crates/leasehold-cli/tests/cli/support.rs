//! A store of its own for each test, processes that cannot outlive it, and ways to await things.

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use leasehold::claim::{Claim, ClaimKey, Note, Standing, Token};
use leasehold::engine::Engine as _;
use leasehold::sqlite::Sqlite;
use leasehold::{Holder, Mode, Name};
use leasehold_testkit::{Clock, Direction, Proxy};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// Only a broken test reaches this limit.
pub(crate) const BOUND: Duration = Duration::from_secs(180);

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_leasehold");

/// A folder with a store in it, removed at the end.
pub(crate) struct Place {
    pub(crate) folder: PathBuf,
}

/// The results of a finished command.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = format!("leasehold-cli-{}-{count}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).expect("a folder for the test");
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.path("locks.db").display())
    }

    /// `leasehold` with these arguments, on this place's store.
    pub(crate) fn leasehold(&self, arguments: &[&str]) -> Command {
        let mut command = bare(Path::new(BINARY));
        command.env("LEASEHOLD_URL", self.url()).args(arguments);
        command
    }

    /// Runs it to its end.
    pub(crate) fn finish(&self, arguments: &[&str]) -> Finished {
        finish(&mut self.leasehold(arguments))
    }

    /// Runs the command and expects this status.
    #[track_caller]
    pub(crate) fn expect(&self, status: i32, arguments: &[&str]) -> Finished {
        let finished = self.finish(arguments);
        assert_eq!(finished.status, status, "{arguments:?}: {finished:?}");
        finished
    }

    /// Starts the command; the test can watch it while it runs.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        Running::start(&mut self.leasehold(arguments))
    }

    /// Starts a holder of `name` that holds until it reads a line or its input ends.
    pub(crate) fn hold(&self, options: &[&str], name: &str) -> Running {
        let mut arguments = vec!["run"];
        arguments.extend(options);
        arguments.extend([name, "--", "sh", "-c", "echo $LEASEHOLD_FENCE; read line; exit 0"]);
        let mut holder = self.start(&arguments);
        holder.fence = holder.line().parse().expect("a holder prints its fence");
        holder
    }

    pub(crate) fn show(&self, name: &str) -> Value {
        json(&self.expect(0, &["show", "--json", name]).stdout)
    }

    /// Waits until `count` claims stand in the line of `name`.
    pub(crate) fn await_waiting(&self, name: &str, count: usize) {
        eventually(&format!("{count} claims wait for `{name}`"), || {
            self.show(name)["waiting"].as_array().map(Vec::len) == Some(count)
        });
    }

    /// Waits until no claim holds `name`.
    pub(crate) fn await_free(&self, name: &str) {
        eventually(&format!("`{name}` is free"), || {
            self.show(name)["held"].as_array().is_some_and(Vec::is_empty)
        });
    }

    pub(crate) fn file(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.path(name)).ok()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ignored = std::fs::remove_dir_all(&self.folder);
    }
}

/// Claims without a client: they stand in their lines for an hour. They are for states that would
/// not last, such as a deadlock, which the library would end.
pub(crate) struct Claims {
    engine: Sqlite,
    runtime: tokio::runtime::Runtime,
}

impl Claims {
    pub(crate) fn on(place: &Place) -> Self {
        let engine = Sqlite::open(place.path("locks.db")).expect("the store of the place");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Self { engine, runtime: runtime.expect("a runtime") }
    }

    /// Puts a claim in line; returns whether it holds at once.
    pub(crate) fn stand(&self, holder: &Holder, mode: Mode, name: &str) -> bool {
        let hour = Duration::from_secs(3_600);
        let claim = Claim {
            key: ClaimKey { name: Name::new(name).expect("a name"), token: Token::random() },
            mode,
            holder: holder.clone(),
            note: Note::new("by hand").expect("a note"),
            ttl: hour,
            patience: hour,
            join: true,
        };
        let standing = self.runtime.block_on(self.engine.claim(&claim)).expect("it stands");
        matches!(standing, Standing::Held { .. })
    }
}

pub(crate) fn holder(label: &str) -> Holder {
    Holder::labelled(label).expect("a label")
}

/// A command without `leasehold`'s variables in its environment, without input, and with signals as
/// a shell leaves them. The test process may ignore some signals, for example under `nohup`.
pub(crate) fn bare(program: &Path) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(program);
    let variables =
        ["URL", "URL_FILE", "HOLDER", "NAME", "FENCE", "HANDLE", "OUTER", "STORE", "LOG"];
    for variable in variables {
        command.env_remove(format!("LEASEHOLD_{variable}"));
    }
    command.env_remove("RUST_LOG");
    command.stdin(Stdio::null());
    command
}

/// Runs a command to its end.
#[track_caller]
pub(crate) fn finish(command: &mut Command) -> Finished {
    Running::start(command).end()
}

/// A command that runs, in a process group of its own; killed if the test ends first.
pub(crate) struct Running {
    child: Child,
    pub(crate) input: Option<ChildStdin>,
    output: Output,
    errors: Output,
    pub(crate) fence: u64,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.process_group(0).spawn().expect("it starts");
        let output = Output::read(child.stdout.take().expect("piped"));
        let errors = Output::read(child.stderr.take().expect("piped"));
        let input = child.stdin.take();
        Self { child, input, output, errors, fence: 0 }
    }

    pub(crate) fn pid(&self) -> Pid {
        pid(self.child.id().into())
    }

    /// The next line of its output.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        match self.output.next_line() {
            Some(line) => line,
            None => panic!("no other line; errors: {}", self.errors.rest()),
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).expect("it is there to be signalled");
    }

    pub(crate) fn write(&mut self, line: &str) {
        let input = self.input.as_mut().expect("its input is open");
        input.write_all(line.as_bytes()).expect("it reads");
    }

    /// Closes its input and waits until it has ended.
    #[track_caller]
    pub(crate) fn end(mut self) -> Finished {
        drop(self.input.take());
        self.wait()
    }

    /// Waits until it has ended.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Finished {
        let status = await_end(&mut self.child);
        Finished { status, stdout: self.output.rest(), stderr: self.errors.rest() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Waits for the end; the exit status, or the negative number of the signal that ended it.
#[track_caller]
pub(crate) fn await_end(child: &mut Child) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("it can be waited for") {
            return status.code().unwrap_or_else(|| -status.signal().unwrap_or(0));
        }
        assert!(begun.elapsed() < BOUND, "it did not end within {BOUND:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until a condition is true.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < BOUND, "not within {BOUND:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn pid(number: i64) -> Pid {
    i32::try_from(number).ok().and_then(Pid::from_raw).expect("a process id")
}

/// The state letter of a process, as `ps` shows it; `None` when it is gone or only a remnant.
pub(crate) fn state(pid: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let state = stat.rsplit_once(')')?.1.trim_start().chars().next()?;
    (!matches!(state, 'Z' | 'X')).then_some(state)
}

#[track_caller]
pub(crate) fn await_gone(pid: Pid) {
    eventually(&format!("process {pid:?} is gone"), || state(pid).is_none());
}

#[track_caller]
pub(crate) fn await_stopped(pid: Pid) {
    eventually(&format!("process {pid:?} is stopped"), || state(pid) == Some('T'));
}

#[track_caller]
pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text:?}"))
}

/// The handle that `acquire` printed.
pub(crate) fn handle(finished: &Finished) -> String {
    finished.stdout.trim().to_owned()
}

/// Shows a lock that a client of another library holds. The output must leave out values that the
/// store does not know.
#[track_caller]
pub(crate) fn shows_only_what_is_known_of_a_foreign_lock(url: &str, name: &str, has_fence: bool) {
    let shown = |arguments: &[&str]| {
        let mut command = bare(Path::new(BINARY));
        finish(command.env("LEASEHOLD_URL", url).args(arguments)).stdout
    };
    eventually("the lock is shown", || {
        json(&shown(&["show", "--json", name]))["held"].as_array().is_some_and(|h| h.len() == 1)
    });
    let held = json(&shown(&["show", "--json", name]))["held"][0].clone();
    assert_eq!(held["acquired_at"], Value::Null, "{held}");
    assert_eq!(held["fence"].is_null(), !has_fence, "{held}");
    let table = shown(&["show", name]);
    let mut lines = table.lines();
    let (header, row) = (lines.next().expect("a header"), lines.next().expect("a row"));
    let since = header.find("SINCE").expect("a column");
    assert!(row[since..].starts_with("? "), "{table}");
    let fence = header.find("FENCE").expect("a column");
    assert_eq!(row[fence..].starts_with("? "), !has_fence, "{table}");
}

/// One of the outputs of a process. A thread reads it, so that the process never waits.
struct Output {
    pipe: Arc<OwnedFd>,
    read: Arc<(Mutex<Read>, Condvar)>,
}

#[derive(Default)]
struct Read {
    bytes: Vec<u8>,
    /// How many of them the test has taken.
    taken: usize,
    /// No process has the other end of the pipe open any more.
    is_over: bool,
}

impl Output {
    fn read(pipe: impl Into<OwnedFd>) -> Self {
        let (pipe, read) = (Arc::new(pipe.into()), Arc::default());
        let output = Self { pipe, read };
        let (pipe, read) = (Arc::clone(&output.pipe), Arc::clone(&output.read));
        std::thread::spawn(move || {
            let mut buffer = [0; 4_096];
            loop {
                // Bytes leave the pipe only under the lock: see `rest`.
                let _ready = rustix::event::poll(&mut [PollFd::new(&pipe, PollFlags::IN)], None);
                let mut state = read.0.lock().expect("nobody panicked");
                match rustix::io::read(&pipe, &mut buffer) {
                    Ok(0) => state.is_over = true,
                    Ok(count) => state.bytes.extend_from_slice(&buffer[..count]),
                    Err(Errno::INTR) => {}
                    Err(error) => panic!("the output cannot be read: {error}"),
                }
                read.1.notify_all();
                if state.is_over {
                    return;
                }
            }
        });
        output
    }

    /// The next line; `None` if there is none within the bound, or the output ends before.
    fn next_line(&self) -> Option<String> {
        let state = self.read.0.lock().expect("nobody panicked");
        let waits =
            |state: &mut Read| !state.is_over && !state.bytes[state.taken..].contains(&b'\n');
        let waited = self.read.1.wait_timeout_while(state, BOUND, waits);
        let (mut state, _) = waited.expect("nobody panicked");
        let length = state.bytes[state.taken..].iter().position(|byte| *byte == b'\n')?;
        let line = state.bytes[state.taken..state.taken + length].to_vec();
        state.taken += length + 1;
        Some(String::from_utf8_lossy(&line).into_owned())
    }

    /// Everything from the last line taken on. Call it once the process has ended: then all its
    /// output is here or in the pipe. A child that it left may still have the pipe open.
    fn rest(&self) -> String {
        loop {
            let state = self.read.0.lock().expect("nobody panicked");
            if rustix::io::ioctl_fionread(&self.pipe).expect("a pipe") == 0 {
                return String::from_utf8_lossy(&state.bytes[state.taken..]).into_owned();
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Takes handles with `--hold-at-least` and `--hold-at-most` after a wait, on the store at `url`.
/// The wait must not count.
pub(crate) fn spans_of_a_handle_count_from_its_grant(url: &str) {
    const WAIT: Duration = Duration::from_secs(4);
    let leasehold = |arguments: &[&str]| {
        let mut command = bare(Path::new(BINARY));
        command.env("LEASEHOLD_URL", url).args(arguments);
        command
    };
    let take_after_a_wait = |name: &str, option: &str, span: &str| {
        let script = format!("echo holds; read line; sleep {}", WAIT.as_secs());
        let mut holder = Running::start(&mut leasehold(&["run", name, "--", "sh", "-c", &script]));
        assert_eq!(holder.line(), "holds");
        let acquire = ["acquire", "-w", "60s", "--ttl", "10s", option, span, name];
        let taking = Running::start(&mut leasehold(&acquire));
        eventually(&format!("a claim waits for `{name}`"), || {
            let shown = finish(&mut leasehold(&["show", "--json", name]));
            json(&shown.stdout)["waiting"].as_array().is_some_and(|waiting| waiting.len() == 1)
        });
        let before = Instant::now();
        holder.write("\n");
        let handle = handle(&taking.end());
        assert_eq!(holder.end().status, 0);
        (handle, before)
    };
    // Stores that count in seconds round.
    let counts_from_grant = |left: &Value, span: u64, before: Instant| {
        let left = Duration::from_millis(left.as_u64().expect("how long it lasts"));
        let elapsed = before.elapsed();
        let span = Duration::from_secs(span);
        assert!(left + elapsed > span + WAIT / 3, "{left:?} of {span:?} after {elapsed:?}");
    };
    let (closed, before) = take_after_a_wait("least", "--hold-at-least", "20s");
    assert_eq!(finish(&mut leasehold(&["release", &closed])).status, 0);
    let shown = json(&finish(&mut leasehold(&["show", "--json", "least"])).stdout);
    counts_from_grant(&shown["held"][0]["remaining_ms"], 20, before);
    let (bounded, before) = take_after_a_wait("most", "--hold-at-most", "10s");
    let renewed = finish(&mut leasehold(&["renew", "--json", "--ttl", "1m", &bounded]));
    counts_from_grant(&json(&renewed.stdout)["remaining_ms"], 10, before);
    assert_eq!(finish(&mut leasehold(&["release", &bounded])).status, 0);
}

/// Uses handles with `--hold-at-least` and `--hold-at-most` on the store at `url`, in processes
/// whose wall clock is an hour off. That must not make either span end sooner or later.
pub(crate) fn spans_of_a_handle_do_not_follow_a_wall_clock_that_is_set(url: &str) {
    const HOUR: Duration = Duration::from_secs(3_600);
    let clock = Clock::new().expect("a clock that can be moved");
    let leasehold = |arguments: &[&str]| {
        let mut command = bare(Path::new(BINARY));
        command.env("LEASEHOLD_URL", url).envs(clock.environment()).args(arguments);
        finish(&mut command)
    };
    let taken = leasehold(&["acquire", "--ttl", "10s", "--hold-at-least", "20s", "least"]);
    clock.set_ahead(HOUR).expect("moved");
    let released = leasehold(&["release", &handle(&taken)]);
    assert_eq!(released.status, 0, "{released:?}");
    let next = leasehold(&["run", "-n", "least", "--", "true"]);
    assert_eq!(next.status, 75, "it was to stay closed for 20 s: {next:?}");
    clock.set_ahead(Duration::ZERO).expect("moved");
    let taken = leasehold(&["acquire", "--ttl", "10s", "--hold-at-most", "1s", "most"]);
    std::thread::sleep(Duration::from_secs(1));
    clock.set_behind(HOUR).expect("moved");
    let renewed = leasehold(&["renew", &handle(&taken)]);
    assert_eq!(renewed.status, 77, "it was to be held for 1 s: {renewed:?}");
}

/// Loses the answer to the release of a lock whose command has ended. `url_at` is the store's url
/// with a server at that address.
pub(crate) fn release_whose_answer_is_lost_is_no_lost_lock(
    server: SocketAddr,
    url_at: impl Fn(SocketAddr) -> String,
) {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().expect("a runtime for the proxy");
    let proxy = runtime.block_on(Proxy::start(server)).expect("a proxy starts");
    let leasehold = |address: SocketAddr, arguments: &[&str]| {
        let mut command = bare(Path::new(BINARY));
        command.env("LEASEHOLD_URL", url_at(address)).args(arguments);
        command
    };
    for status in [0, 7] {
        let script = format!("echo inside; read line; exit {status}");
        let run = ["run", "--ttl", "30s", "lost-answer", "--", "sh", "-c", &script];
        let mut running = Running::start(&mut leasehold(proxy.address(), &run));
        assert_eq!(running.line(), "inside");
        proxy.block(Direction::ToClient);
        drop(running.input.take());
        eventually("the lock is given back", || {
            let shown = finish(&mut leasehold(server, &["show", "--json", "lost-answer"]));
            json(&shown.stdout)["held"].as_array().is_some_and(Vec::is_empty)
        });
        proxy.reset_all();
        runtime.block_on(proxy.pass()).expect("it passes");
        let finished = running.wait();
        assert_eq!(finished.status, status, "{finished:?}");
        assert_eq!(finished.stderr, "");
    }
}
