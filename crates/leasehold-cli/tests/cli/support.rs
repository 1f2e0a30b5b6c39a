//! A store of its own for each test, processes that cannot outlive it, and ways to await things.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use leasehold::claim::{Claim, ClaimKey, Note, Standing, Token};
use leasehold::engine::Engine as _;
use leasehold::sqlite::Sqlite;
use leasehold::{Holder, Mode, Name};
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// Reached only when something is broken.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_leasehold");

/// A folder with a store in it, removed at the end.
pub(crate) struct Place {
    pub(crate) folder: PathBuf,
}

/// What a finished command left.
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

    /// Runs it and expects this status.
    #[track_caller]
    pub(crate) fn expect(&self, status: i32, arguments: &[&str]) -> Finished {
        let finished = self.finish(arguments);
        assert_eq!(finished.status, status, "{arguments:?}: {finished:?}");
        finished
    }

    /// Starts it, to be looked at while it runs.
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

    /// Waits until so many claims stand in the line of `name`.
    pub(crate) fn await_waiting(&self, name: &str, count: usize) {
        eventually(&format!("{count} claims wait for `{name}`"), || {
            self.show(name)["waiting"].as_array().map(Vec::len) == Some(count)
        });
    }

    /// Waits until nobody holds `name`.
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

/// Claims that nobody acts for: they stand in their lines for an hour, whatever becomes of them.
/// For pictures that would not last, such as a deadlock, which the library would end.
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

    /// Puts a claim in line; whether it holds at once.
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

/// A command without anything of `leasehold` in its environment, without input, and with signals
/// as a shell leaves them: whoever runs the tests may have some of them ignored, as `nohup` does.
pub(crate) fn bare(program: &Path) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(program);
    let variables = ["URL", "HOLDER", "NAME", "FENCE", "HANDLE", "OUTER"];
    for variable in variables {
        command.env_remove(format!("LEASEHOLD_{variable}"));
    }
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
    lines: Receiver<String>,
    errors: Receiver<String>,
    pub(crate) fence: u64,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.process_group(0).spawn().expect("it starts");
        let lines = read_lines(child.stdout.take().expect("piped"));
        let mut stderr = child.stderr.take().expect("piped");
        let (sender, errors) = channel();
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ended = stderr.read_to_end(&mut text);
            let _heard = sender.send(String::from_utf8_lossy(&text).into_owned());
        });
        let input = child.stdin.take();
        Self { child, input, lines, errors, fence: 0 }
    }

    pub(crate) fn pid(&self) -> Pid {
        pid(self.child.id().into())
    }

    /// The next line of its output.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        match self.lines.recv_timeout(BOUND) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("no line within {BOUND:?}"),
            Err(RecvTimeoutError::Disconnected) => {
                let errors = self.errors.recv_timeout(BOUND);
                panic!("it ended without another line: {errors:?}")
            }
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
        // Something it started may still have its output open; what was written is there.
        let stderr = self.errors.recv_timeout(Duration::from_secs(2)).unwrap_or_default();
        let stdout = std::iter::from_fn(|| self.lines.recv_timeout(Duration::from_secs(1)).ok());
        Finished { status, stdout: stdout.map(|line| line + "\n").collect(), stderr }
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

/// Waits until something is so.
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

fn read_lines(stdout: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    lines
}
