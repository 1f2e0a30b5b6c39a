//! The examples in `deploy` are checked, and their commands run with the real program.
//!
//! systemd checks its units, and the schemas of Kubernetes its manifests. A static program and the
//! Debian package take longer to build: `cargo xtask deploy-check` looks at those.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal};
use serde_json::Value;
use tempfile::TempDir;

const UNITS: [&str; 3] = ["nightly-report.service", "nightly-report.timer", "scheduler.service"];
const MANIFESTS: [&str; 4] = ["cronjob.yaml", "init-container.yaml", "job.yaml", "secret.yaml"];

/// Prints the documents of a file as JSON, one a line.
const AS_JSON: &str = "import json, sys, yaml
for document in yaml.safe_load_all(sys.stdin): print(json.dumps(document))";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder for the test")
}

/// A program of the user's, which leaves a file when it starts.
fn stand_in(path: &Path, then: &str) {
    let script = format!("#!/bin/sh\n: > \"$0.started\"\necho started\n{then}\n");
    std::fs::write(path, script).expect("room for a script");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("our file");
}

fn has_started(program: &Path) -> bool {
    program.with_extension("started").exists()
}

/// The URL of a store of this test, in a file as `--url-file` wants it.
fn write_url(folder: &Path, file: &Path) {
    let url = format!("sqlite:{}\n", folder.join("locks.db").display());
    std::fs::write(file, url).expect("room for a file");
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o400)).expect("our file");
}

/// A command without the variables of a run around this test.
fn command(words: &[String], folder: &Path) -> Command {
    let (program, arguments) = words.split_first().expect("a program");
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LEASEHOLD_") {
            command.env_remove(name);
        }
    }
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    command
}

fn all_of(output: &Output) -> String {
    let both = [&*output.stdout, &*output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// What systemd says of units; nothing if they are right.
fn verified(units: &[(&str, String)]) -> String {
    let folder = folder();
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=no"]);
    for (name, text) in units {
        // Programs that exist: this one, and one in the place of the user's.
        let text = text.replace("/usr/bin/leasehold", env!("CARGO_BIN_EXE_leasehold"));
        std::fs::write(folder.path().join(name), text).expect("room for a unit");
        verify.arg(folder.path().join(name));
    }
    let output = verify.output().expect("systemd-analyze: `cargo xtask setup` installs it");
    let said = all_of(&output);
    assert!(output.status.success() || !said.is_empty(), "{output:?}");
    said
}

#[test]
fn systemd_accepts_the_units() {
    let texts = UNITS.map(|unit| (unit, read(&format!("deploy/systemd/{unit}"))));
    assert_eq!(verified(&texts), "");
    let mistyped = texts.map(|(unit, text)| (unit, text.replace("KillMode=", "KillModes=")));
    assert!(verified(&mistyped).contains("KillModes"), "a wrong key is found at all");
}

/// The words of a unit's `ExecStart`, with the paths of this test.
fn exec_start(unit: &str, folder: &Path, program: &str) -> Vec<String> {
    let text = read(&format!("deploy/systemd/{unit}"));
    let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
    write_url(folder, &folder.join("url"));
    let with_paths = |word: &str| match word {
        "/usr/bin/leasehold" => env!("CARGO_BIN_EXE_leasehold").to_owned(),
        "/etc/leasehold/url" => folder.join("url").display().to_string(),
        "%H" => "web1".to_owned(),
        word if word.ends_with(program) && word.starts_with('/') => {
            folder.join(program).display().to_string()
        }
        word => word.to_owned(),
    };
    line.split(' ').map(with_paths).collect()
}

#[test]
fn timer_runs_its_job_once() {
    let folder = folder();
    let job = folder.path().join("nightly-report");
    stand_in(&job, "");
    let words = exec_start("nightly-report.service", folder.path(), "nightly-report");
    let first = command(&words, folder.path()).output().expect("it starts");
    assert!(first.status.success() && has_started(&job), "{}", all_of(&first));
    std::fs::remove_file(job.with_extension("started")).expect("the job left it");
    let second = command(&words, folder.path()).output().expect("it starts");
    assert!(second.status.success() && !has_started(&job), "{}", all_of(&second));
}

#[test]
fn service_that_systemd_stops_ends_with_a_status_that_counts_as_success() {
    let folder = folder();
    let service = folder.path().join("scheduler");
    stand_in(&service, "exec sleep 600");
    let words = exec_start("scheduler.service", folder.path(), "scheduler");
    let mut elect = command(&words, folder.path());
    let mut child = elect.stdout(Stdio::piped()).spawn().expect("it starts");
    // The service's first line comes when this process leads.
    let mut line = String::new();
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
    lines.read_line(&mut line).expect("a line");
    assert_eq!(line, "started\n", "it ended before it led");
    let pid = Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::TERM).expect("our child");
    let status = child.wait().expect("our child").code().expect("a status");
    let unit = read("deploy/systemd/scheduler.service");
    assert!(unit.contains(&format!("SuccessExitStatus={status}\n")), "{status}");
}

/// The Python of the tests, which has the schemas of Kubernetes.
fn python() -> Command {
    let python = root().join("target/interop/venv/bin/python");
    assert!(python.exists(), "{} is missing: run `cargo xtask setup`", python.display());
    Command::new(python)
}

/// Whether a manifest keeps the schema of its kind, and what is wrong with it.
fn keeps_its_schema(manifest: &str) -> (bool, String) {
    let folder = folder();
    let file = folder.path().join("manifest.yaml");
    std::fs::write(&file, manifest).expect("room for a manifest");
    let validate = ["-m", "kubernetes_validate", "--strict"];
    let output = python().args(validate).arg(&file).output().expect("Python starts");
    (output.status.success(), all_of(&output))
}

#[test]
fn manifests_keep_the_schemas_of_kubernetes() {
    for manifest in MANIFESTS {
        let (is_right, said) = keeps_its_schema(&read(&format!("deploy/kubernetes/{manifest}")));
        assert!(is_right, "{manifest}: {said}");
        assert!(said.contains("passed"), "{manifest} was not looked at: {said}");
    }
    let mistyped = read("deploy/kubernetes/job.yaml").replace("backoffLimit:", "backofLimit:");
    let (is_right, said) = keeps_its_schema(&mistyped);
    assert!(!is_right && said.contains("backofLimit"), "a wrong field is found at all: {said}");
}

/// The containers of a manifest, those that run first before the others.
fn containers(manifest: &str) -> Vec<Value> {
    let file = std::fs::File::open(root().join("deploy/kubernetes").join(manifest));
    let parsed = python().args(["-c", AS_JSON]).stdin(file.expect("a manifest")).output();
    let parsed = parsed.expect("Python starts");
    let document: Value = serde_json::from_slice(&parsed.stdout).expect("one document");
    let pod = ["/spec/template/spec", "/spec/jobTemplate/spec/template/spec"];
    let pod = pod.iter().find_map(|path| document.pointer(path)).expect("a pod");
    let lists = ["initContainers", "containers"].map(|list| pod[list].as_array());
    lists.into_iter().flatten().flatten().cloned().collect()
}

/// The command of a container with the paths of this test; empty if it is the image's.
fn words_of(container: &Value, folder: &Path) -> Vec<String> {
    let lists = ["command", "args"].map(|list| container[list].as_array());
    let words = lists.into_iter().flatten().flatten();
    let with_paths = |word: &Value| match word.as_str().expect("a text") {
        "leasehold" => env!("CARGO_BIN_EXE_leasehold").to_owned(),
        word if word.starts_with("/secret/") || word.starts_with("/leasehold/") => {
            format!("{}{word}", folder.display())
        }
        word => word.to_owned(),
    };
    words.map(with_paths).collect()
}

#[test]
fn commands_of_the_manifests_run_the_program_under_a_lock() {
    for (manifest, program) in
        [("cronjob.yaml", "report"), ("init-container.yaml", "migrate"), ("job.yaml", "migrate")]
    {
        let folder = folder();
        for mount in ["secret", "leasehold"] {
            std::fs::create_dir(folder.path().join(mount)).expect("a folder");
        }
        let secret = folder.path().join("secret/url");
        write_url(folder.path(), &secret);
        // The mode with which Kubernetes mounts a secret.
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o644)).expect("ours");
        let program = folder.path().join(program);
        stand_in(&program, "test -n \"$LEASEHOLD_FENCE\"");
        let mut count = 0;
        for container in containers(manifest) {
            let words = words_of(&container, folder.path());
            if !words.is_empty() {
                let output = command(&words, folder.path()).output().expect("it starts");
                assert!(output.status.success(), "{manifest}: {words:?}: {}", all_of(&output));
                count += 1;
            }
        }
        assert!(count == 2 && has_started(&program), "{manifest}: {count} commands ran");
    }
}

#[test]
fn every_file_of_the_debian_package_is_there() {
    let manifest = read("crates/leasehold-cli/Cargo.toml");
    let (_, assets) = manifest.split_once("\nassets = [\n").expect("the package has files");
    let (assets, _) = assets.split_once("\n]\n").expect("the end of the list");
    let sources =
        assets.lines().filter_map(|line| line.trim().strip_prefix("[\"")?.split('"').next());
    let mut count = 0;
    for source in sources {
        count += 1;
        let is_built = source.contains("target/");
        let path = root().join("crates/leasehold-cli").join(source.trim_end_matches('*'));
        assert!(is_built || path.exists(), "{source} is not there");
    }
    assert!(count >= 5, "only {count} files");
}
