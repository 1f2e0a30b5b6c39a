//! A run that cannot go on says so in a sentence, and leaves no process.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use leasehold_testkit::waiting::{soon, until};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold-torture");

/// A run whose files, and those of its servers, are all in a folder.
struct Scene {
    folder: TempDir,
}

/// What a run said, and whether it was content.
struct Said {
    success: bool,
    output: String,
    errors: String,
}

impl Scene {
    fn new() -> Scene {
        Scene { folder: tempfile::tempdir().expect("a folder") }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A run of so many seconds on a set-up, by way of another program or directly.
    fn command(&self, by: &[&str], engine: &str, seconds: &str) -> Command {
        let own = [PROGRAM, "--engine", engine, "--seconds", seconds, "--seed", "7"];
        let words = [by, &own].concat();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .env("CARGO_TARGET_DIR", self.path())
            .env("TMPDIR", self.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs to the end, and sees that no process stays.
    async fn run(&self, command: &mut Command) -> Said {
        let mut child = command.spawn().expect("it starts");
        let said = ended(&mut child).await;
        self.until_quiet().await;
        said
    }

    /// The processes that have this folder on their command line or in their environment, or write
    /// there: some servers put a title over the other two.
    fn processes(&self) -> Vec<String> {
        let path = self.path().to_string_lossy().into_owned();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").expect("it is mounted").flatten() {
            // A process that ends meanwhile cannot be read.
            let read = |file: &str| fs::read(entry.path().join(file)).unwrap_or_default();
            let text = [read("cmdline"), read("environ")].concat();
            let output = fs::read_link(entry.path().join("fd/1")).unwrap_or_default();
            if String::from_utf8_lossy(&text).contains(&path) || output.starts_with(self.path()) {
                found.push(String::from_utf8_lossy(&read("cmdline")).replace('\0', " "));
            }
        }
        found
    }

    /// The worker processes.
    fn workers(&self) -> Vec<i32> {
        let path = self.path().to_string_lossy().into_owned();
        let entries = fs::read_dir("/proc").expect("it is mounted").flatten();
        let is_worker = |entry: &fs::DirEntry| {
            let text = fs::read(entry.path().join("environ")).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            text.contains("LEASEHOLD_TORTURE_WORKER=") && text.contains(&path)
        };
        let names = entries.filter(is_worker).map(|entry| entry.file_name());
        names.filter_map(|name| name.to_string_lossy().parse().ok()).collect()
    }

    async fn until_quiet(&self) {
        until("no process to be left", async || self.processes().is_empty()).await;
    }

    fn histories(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path().join("torture"));
        let entries = entries.into_iter().flatten().flatten().map(|entry| entry.path());
        entries.filter(|path| path.is_dir() && !path.ends_with("disk")).collect()
    }
}

/// Whether a process of a stopped parent has ended: nobody collects its status.
fn has_ended(id: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

async fn ended(child: &mut Child) -> Said {
    let status = soon("the run to end", async {
        loop {
            if let Some(status) = child.try_wait().expect("it is ours") {
                return status;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    let success = status.await.success();
    let (mut output, mut errors) = (String::new(), String::new());
    child.stdout.take().expect("a pipe").read_to_string(&mut output).expect("text");
    child.stderr.take().expect("a pipe").read_to_string(&mut errors).expect("text");
    Said { success, output, errors }
}

#[tokio::test]
async fn server_that_does_not_start_ends_the_run_with_a_sentence_and_its_log() {
    let scene = Scene::new();
    let programs = scene.path().join("programs");
    fs::create_dir(&programs).expect("a folder");
    let program = programs.join("redis-server");
    fs::write(&program, "#!/bin/sh\necho 'no such option'\nexit 3\n").expect("a file");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("its owner may");
    let path = std::env::var("PATH").expect("a path");
    let mut command = scene.command(&[], "redis", "4");
    let said = scene.run(command.env("PATH", format!("{}:{path}", programs.display()))).await;
    let start = "torture: cannot start `redis`: `redis` ended before it was ready (exit status: 3)";
    assert!(said.errors.starts_with(start), "{}", said.errors);
    assert!(said.errors.contains("no such option"), "{}", said.errors);
    assert!(!said.success && said.output.is_empty(), "{}", said.output);
    assert_eq!(scene.histories(), [] as [PathBuf; 0]);
}

#[tokio::test]
async fn folder_that_cannot_be_made_ends_the_run_with_a_sentence() {
    let scene = Scene::new();
    let file = scene.path().join("file");
    fs::write(&file, "").expect("a file");
    let mut command = scene.command(&[], "sqlite", "4");
    let said = scene.run(command.env("CARGO_TARGET_DIR", &file)).await;
    let lines: Vec<&str> = said.errors.lines().collect();
    let [line] = lines[..] else { panic!("one sentence, not {lines:?}") };
    assert!(line.starts_with("torture: cannot make the folder "), "{line}");
    assert!(line.ends_with("Not a directory (os error 20)"), "{line}");
    assert!(!said.success && said.output.is_empty(), "{}", said.output);
}

/// A file on a full disk stands for the disk.
#[tokio::test]
async fn history_that_cannot_be_written_ends_the_run_with_a_sentence() {
    let scene = Scene::new();
    // The program keeps the number of the process that becomes it.
    let script = "folder=\"$CARGO_TARGET_DIR/torture/sqlite-7-$$\" && mkdir -p \"$folder\" && \
                  ln -s /dev/full \"$folder/register.jsonl\" && exec \"$@\"";
    let said = scene.run(&mut scene.command(&["sh", "-c", script, "sh"], "sqlite", "60")).await;
    let sentence = "torture: cannot write the history: No space left on device (os error 28)\n";
    assert_eq!(said.errors, sentence);
    assert!(!said.success && said.output.is_empty(), "{}", said.output);
}

#[tokio::test]
async fn interrupted_run_leaves_no_process() {
    let scene = Scene::new();
    // A shell lets programs in the background ignore Ctrl-C.
    let by = ["env", "--default-signal=INT"];
    let mut child = scene.command(&by, "redis", "60").spawn().expect("it starts");
    until("the workers to be at work", async || {
        let files = scene.histories().into_iter().map(|path| path.join("worker-4.jsonl"));
        files.into_iter().any(|file| fs::metadata(file).is_ok_and(|file| file.len() > 1_000))
    })
    .await;
    let before = scene.processes();
    assert!(before.iter().any(|one| one.contains("redis-server")), "{before:?}");
    assert!(before.len() > 5, "{before:?}");
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    assert!(!ended(&mut child).await.success);
    scene.until_quiet().await;
}

/// The plan kills workers all the time; one that ended before that is not overlooked.
#[tokio::test]
async fn worker_that_ends_by_itself_is_found_although_the_plan_kills_it() {
    let scene = Scene::new();
    let mut command = scene.command(&[], "sqlite", "12");
    let mut child = command.args(["--faults", "worker-kill"]).spawn().expect("it starts");
    until("four workers", async || scene.workers().len() == 4).await;
    // The run must not kill the worker while that ends by itself.
    let run = Pid::from_child(&child);
    kill_process(run, Signal::STOP).expect("it runs");
    let worker = scene.workers().into_iter().find(|id| !has_ended(*id)).expect("one that lives");
    kill_process(Pid::from_raw(worker).expect("a number"), Signal::TERM).expect("it runs");
    until("the worker to end", async || has_ended(worker)).await;
    kill_process(run, Signal::CONT).expect("it runs");
    let said = ended(&mut child).await;
    scene.until_quiet().await;
    assert!(!said.success && said.output.contains("violations  stuck 1"), "{}", said.output);
    let again = "cargo xtask torture --engine sqlite --seconds 12 --seed 7 --faults worker-kill\n";
    assert!(said.output.ends_with(again), "{}", said.output);
}

#[tokio::test]
async fn folder_without_a_history_is_not_taken_for_a_good_one() {
    let scene = Scene::new();
    let folder = scene.path().join("empty");
    fs::create_dir(&folder).expect("a folder");
    let check = ["--check", folder.to_str().expect("a plain path")];
    let said = scene.run(scene.command(&[], "sqlite", "4").args(check)).await;
    let sentence = format!("torture: cannot read the history in {}: ", folder.display());
    assert_eq!(said.errors, format!("{sentence}there is no history\n"));
    assert!(!said.success && said.output.is_empty(), "{}", said.output);
    fs::write(folder.join("notes.jsonl"), "one\ntwo\n").expect("a file");
    let said = scene.run(scene.command(&[], "sqlite", "4").args(check)).await;
    assert!(said.errors.starts_with(&sentence) && !said.success, "{}", said.errors);
}

/// Without the right to mount there is no small disk, and everything else goes on.
#[tokio::test]
async fn run_without_the_right_to_mount_goes_on() {
    let scene = Scene::new();
    let by = ["setpriv", "--bounding-set", "-sys_admin"];
    let said = scene.run(scene.command(&by, "sqlite", "4").args(["--faults", "worker"])).await;
    assert!(said.success && said.errors.is_empty(), "{}{}", said.output, said.errors);
}
