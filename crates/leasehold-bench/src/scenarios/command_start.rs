//! A command under a lock, from the call to its end: `leasehold run` beside `flock`.
//!
//! The raw limit is the command alone: starting a process is most of it.

use std::io::ErrorKind;
use std::process::{Command, Stdio};

use crate::Result;
use crate::contender::{Contender, Role, take_turns};
use crate::machine::now;
use crate::progress::Progress;
use crate::report::{Report, Table, span, times};
use crate::scenarios::Setting;
use crate::stats::{Samples, ratio_of_rounds};

/// Also in quick runs. With few runs the file stays small, and would hide a start that gets slower
/// with the size of the file.
const RUNS: usize = 300;

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let leasehold = std::env::current_exe()?.with_file_name("leasehold");
    if !leasehold.is_file() {
        return Err("no `leasehold` beside this program; `cargo xtask bench` builds it".into());
    }
    let url = setting.scratch.sqlite("start.db");
    let file = setting.scratch.file("start.lock");
    let mut ours = Command::new(leasehold);
    ours.args(["run", "x", "--url", &url, "--", "true"]);
    for (variable, _) in std::env::vars_os() {
        // The user's own settings must not change the measurement.
        if variable.as_encoded_bytes().starts_with(b"LEASEHOLD_") {
            ours.env_remove(variable);
        }
    }
    let mut theirs = Command::new("flock");
    theirs.arg(file).arg("true");
    let mut alone = Command::new("true");
    let contenders = vec![
        Contender::new(Role::Ours, "leasehold run x -- true", move || timed(&mut ours)),
        Contender::new(Role::Rival, "flock FILE true", move || {
            timed(&mut theirs).map_err(|error| match error.downcast_ref::<std::io::Error>() {
                Some(error) if error.kind() == ErrorKind::NotFound => {
                    "there is no program `flock`; install the Debian package `util-linux`".into()
                }
                _ => error,
            })
        }),
        Contender::new(Role::Limit, "true", move || timed(&mut alone)),
    ];
    let outcomes = take_turns(contenders, RUNS, progress)?;

    let mut report = Report::default();
    let head = ["command", "role", "runs", "p50", "p99", "first tenth", "last tenth", "to flock"];
    let mut table = Table::new(head);
    for outcome in &outcomes {
        let all = Samples::pooled(&outcome.rounds);
        let ratio = ratio_of_rounds(&outcome.rounds, &outcomes[1].rounds);
        let tenth = outcome.rounds.len() / 10;
        let first = Samples::pooled(&outcome.rounds[..tenth]);
        let last = Samples::pooled(&outcome.rounds[outcome.rounds.len() - tenth..]);
        table.row([
            format!("`{}`", outcome.name),
            outcome.role.word().into(),
            all.count().to_string(),
            span(all.p50()),
            span(all.p99()),
            span(first.p50()),
            span(last.p50()),
            times(ratio),
        ]);
        if outcome.role == Role::Ours {
            let met = ratio.is_some_and(|ratio| ratio <= 2.0);
            report.target("`leasehold run x -- true`", "at most 2 × `flock`", times(ratio), met);
        }
    }
    report.table(table);
    report.note(
        "All runs use one file. `first tenth` and `last tenth` are the p50 of the first and the \
         last runs: a start that gets slower with use shows there.",
    );
    Ok(report)
}

/// The time of a command, from its start until this process knows that it has ended.
fn timed(command: &mut Command) -> Result<Samples> {
    let begun = now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    let took = now() - begun;
    if !status.success() {
        return Err(format!("it ended with {status}").into());
    }
    Ok(Samples::new(vec![took]))
}
