//! The command: its arguments, one run after the other, and what is said about each.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::checks::{self, Judged, Violation};
use crate::disk;
use crate::faults::Kind;
use crate::history::History;
use crate::mutant::Mutant;
use crate::report::{Summary, explained};
use crate::run::{self, Options};
use crate::setup::{self, SETUPS, SetUp};

const HELP: &str = "\
usage: cargo xtask torture [--engine NAME]... [--seconds N] [--seed S] [--faults LIST] [--json]
       cargo xtask torture --check FOLDER --engine NAME

Workers use the library on real servers while faults happen; a checker reads what they wrote down.

  --engine NAME   a set-up, or all of an engine (`etcd`); all set-ups by default
  --seconds N     how long each set-up runs, from 4; 120 by default
  --seed S        what the faults follow from; the same seed makes the same faults
  --faults LIST   only these kinds, with commas between; `link` is all that begin so, `none` none;
                  each set-up must have one of each
  --json          one line of JSON for each set-up
  --check FOLDER  check the history of a failed run again
";

/// A run of so many seconds must have so many faults of so many kinds, and its set-up's grants.
const WHOLE_SECONDS: u64 = 120;
const FAULTS_MIN: usize = 100;
const KINDS_MIN: usize = 8;

/// So often each check must have judged, and not excused, what it saw in such a run.
const JUDGED_MIN: [(&str, usize); 9] = [
    ("exclusion", 500),
    ("release", 500),
    ("order", 10),
    ("asleep", 10),
    ("opens", 1),
    ("progress", 20),
    ("rate", 10),
    ("once", 10),
    ("election", 10),
];

/// The arguments, as they were understood.
#[derive(Debug)]
struct Arguments {
    setups: Vec<&'static SetUp>,
    seconds: u64,
    seed: u64,
    faults: Option<Vec<Kind>>,
    /// The kinds as they were asked for.
    list: Option<String>,
    json: bool,
    check: Option<PathBuf>,
    /// Not in the help: for tests of the checker, on SQLite alone.
    mutant: Option<Mutant>,
    /// Nor is this: a fault in the library itself, on any set-up.
    seeded: Option<String>,
}

/// What is said about one set-up with `--json`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    engine: &'a str,
    seconds: u64,
    seed: u64,
    #[serde(flatten)]
    summary: Summary,
    /// What a whole run lacks.
    short: Option<&'a str>,
    history: Option<&'a Path>,
}

/// What is known of one run.
struct Outcome<'a> {
    summary: Summary,
    history: &'a History,
    found: &'a [Violation],
    good: bool,
    short: Option<String>,
    folder: &'a Path,
}

/// Runs the command.
pub fn main(words: &[String]) -> ExitCode {
    if words.iter().any(|word| word == "--help" || word == "-h") {
        print!("{HELP}");
        println!("\nset-ups: {}", setup::names());
        println!("faults: {}", Kind::names());
        println!("checks: {}", checks::NAMES.join(", "));
        return ExitCode::SUCCESS;
    }
    let arguments = match Arguments::of(words) {
        Ok(arguments) => arguments,
        Err(message) => {
            eprintln!("torture: {message}");
            return ExitCode::from(2);
        }
    };
    if arguments.needs_disk() {
        disk::run_again_with_one(&torture_folder().join("disk"));
    }
    leasehold_testkit::remove_orphans();
    let mut good = true;
    for setup in &arguments.setups {
        good &= match arguments.one(setup) {
            Ok(good) => good,
            Err(error) => {
                eprintln!("torture: {error}");
                false
            }
        };
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Arguments {
    fn of(words: &[String]) -> Result<Arguments, String> {
        let mut arguments = Arguments {
            setups: Vec::new(),
            seconds: 120,
            seed: random_seed(),
            faults: None,
            list: None,
            json: false,
            check: None,
            mutant: None,
            seeded: None,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("`{word}` needs a value"));
            match word.as_str() {
                "--engine" => arguments.setups.extend(set_ups(value()?)?),
                "--seconds" => arguments.seconds = number(word, value()?, 4..86_400)?,
                "--seed" => arguments.seed = number(word, value()?, 0..u64::MAX)?,
                "--faults" => arguments.list = Some(value()?.clone()),
                "--json" => arguments.json = true,
                "--mutant" => arguments.mutant = Some(mutant(value()?)?),
                "--seeded" => arguments.seeded = Some(value()?.clone()),
                "--check" => arguments.check = Some(PathBuf::from(value()?)),
                _ => return Err(format!("unknown argument `{word}`; `--help` lists them")),
            }
        }
        if arguments.setups.is_empty() {
            arguments.setups = SETUPS.iter().collect();
        }
        if let Some(list) = &arguments.list {
            arguments.faults = Some(kinds(list, &arguments.setups)?);
        }
        if arguments.mutant.is_some() && arguments.setups.iter().any(|one| one.name != "sqlite") {
            return Err("`--mutant` needs `--engine sqlite`".to_owned());
        }
        if arguments.check.is_some() && arguments.setups.len() != 1 {
            return Err("`--check` needs the one `--engine` of the history".to_owned());
        }
        Ok(arguments)
    }

    /// Whether a database file is made, whose disk can be filled.
    fn needs_disk(&self) -> bool {
        let is_file = |setup: &&SetUp| setup.kinds().contains(&Kind::FileFull);
        self.check.is_none() && self.setups.iter().any(is_file)
    }

    fn options(&self) -> Options {
        let (faults, mutant, seeded) = (self.faults.clone(), self.mutant, self.seeded.clone());
        Options { faults, mutant, seeded, ..Options::new(self.seconds, self.seed) }
    }

    /// Runs one set-up, or reads its history; true if nothing is wrong.
    fn one(&self, setup: &'static SetUp) -> Result<bool, run::Error> {
        let folder = match &self.check {
            Some(folder) => folder.clone(),
            None => self.make_run(setup)?,
        };
        let history = History::read(&folder, self.options().terms(setup));
        let doing = format!("read the history in {}", folder.display());
        let history = history.map_err(|source| run::Error::Io { doing, source })?;
        let (found, tally) = checks::judge(&history);
        let summary = Summary::of(&history, &found, tally);
        let short = self.shortage(setup, &summary);
        let good = found.is_empty() && short.is_none();
        let (history, found, folder) = (&history, &found[..], folder.as_path());
        self.say(setup, Outcome { summary, history, found, good, short, folder });
        if good && self.check.is_none() {
            // Nothing depends on its removal.
            let _left = std::fs::remove_dir_all(folder);
        }
        Ok(good)
    }

    fn make_run(&self, setup: &'static SetUp) -> Result<PathBuf, run::Error> {
        let folder = history_folder(setup, self.seed);
        let doing = || "start a runtime".to_owned();
        // The proxies run on it too, and faults block a thread each while a server starts or ends.
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(8).enable_all().build();
        let runtime = runtime.map_err(|source| run::Error::Io { doing: doing(), source })?;
        let ran = runtime.block_on(run::run(setup, &self.options(), &folder));
        if ran.is_err() && has_workers(&folder) {
            eprintln!("torture: the history so far is in {}", folder.display());
        } else if ran.is_err() {
            // Nothing happened.
            let _left = std::fs::remove_dir_all(&folder);
        }
        ran.map(|()| folder)
    }

    /// The lack of a whole run, if it has one. A run of two minutes with all kinds of faults must
    /// have enough of everything to prove something.
    fn shortage(&self, setup: &SetUp, summary: &Summary) -> Option<String> {
        let is_all = self.faults.is_none() && self.check.is_none();
        if self.seconds < WHOLE_SECONDS || !is_all {
            return None;
        }
        let (grants, faults) = (summary.grants, summary.faults_made());
        let kinds = summary.faults.len();
        let mut lacks = Vec::new();
        if grants < setup.grants {
            lacks.push(format!("{grants} grants of {}", setup.grants));
        }
        if faults < FAULTS_MIN || kinds < KINDS_MIN {
            lacks.push(format!("{faults} faults of {FAULTS_MIN}, {kinds} kinds of {KINDS_MIN}"));
        }
        for (check, least) in JUDGED_MIN {
            let Judged { judged, excused } = summary.judged.get(check).copied().unwrap_or_default();
            // Where a set-up cannot do what is checked there is nothing to judge, or to excuse.
            if judged < least && judged + excused >= least {
                lacks.push(format!("`{check}` judged {judged} times of {least}"));
            }
        }
        (!lacks.is_empty()).then(|| format!("the run is too small: {}", lacks.join("; ")))
    }

    fn say(&self, setup: &SetUp, outcome: Outcome<'_>) {
        let Outcome { summary, history, found, good, short, folder } = outcome;
        let (name, seconds, seed) = (setup.name, self.seconds, self.seed);
        if self.json {
            let (engine, short) = (name, short.as_deref());
            let history = (!good).then_some(folder);
            let line = Line { engine, seconds, seed, summary, short, history };
            println!("{}", serde_json::to_string(&line).expect("plain data"));
        } else {
            match self.check {
                Some(_) => println!("{name}: the history in {}", folder.display()),
                None => println!("{name}: {seconds} s, seed {seed}"),
            }
            print!("{}", summary.lines());
        }
        if let Some(short) = short {
            eprintln!("torture: {name}: {short}");
        }
        if good {
            return;
        }
        let mut text = explained(history, found);
        text.push_str(&format!(
            "\nthe history is in {folder}; to look at it again:\n  \
             cargo xtask torture --engine {name} --check {folder}\n",
            folder = folder.display()
        ));
        if self.check.is_none() {
            let again = self.again(name);
            text.push_str(&format!("to make the same faults again:\n  {again}\n"));
        }
        // A line of JSON stays alone.
        if self.json { eprint!("{text}") } else { print!("\n{text}") }
    }

    /// The command that makes the same faults again.
    fn again(&self, name: &str) -> String {
        let (seconds, seed) = (self.seconds, self.seed);
        let kinds = self.list.as_ref().map(|list| format!(" --faults {list}"));
        let kinds = kinds.unwrap_or_default();
        format!("cargo xtask torture --engine {name} --seconds {seconds} --seed {seed}{kinds}")
    }
}

fn set_ups(name: &str) -> Result<Vec<&'static SetUp>, String> {
    let found = setup::named(name);
    if found.is_empty() {
        return Err(format!("unknown engine `{name}`; known are: {}", setup::names()));
    }
    Ok(found)
}

/// The kinds of a list. Each word of it must choose a fault in each set-up: a run without the fault
/// that was asked for would prove nothing.
fn kinds(list: &str, setups: &[&SetUp]) -> Result<Vec<Kind>, String> {
    let mut kinds = Vec::new();
    for name in list.split(',').filter(|name| *name != "none") {
        let found = Kind::named(name);
        if found.is_empty() {
            return Err(format!("unknown fault `{name}`; known are: {}", Kind::names()));
        }
        let lacks = |setup: &&&SetUp| !setup.kinds().iter().any(|kind| found.contains(kind));
        if let Some(setup) = setups.iter().find(lacks) {
            let all: Vec<&str> = setup.kinds().into_iter().map(Kind::name).collect();
            let (setup, all) = (setup.name, all.join(", "));
            return Err(format!("`{setup}` has no fault `{name}`; it has: {all}"));
        }
        kinds.extend(found);
    }
    Ok(kinds)
}

fn mutant(name: &str) -> Result<Mutant, String> {
    let known = serde_json::from_value(serde_json::Value::from(name));
    known.map_err(|_| format!("unknown mutant `{name}`"))
}

fn number(option: &str, text: &str, range: std::ops::Range<u64>) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    let (least, most) = (range.start, range.end - 1);
    number.ok_or(format!("`{option}` takes a number from {least} to {most}, but got `{text}`"))
}

fn random_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(since.subsec_nanos()) % 1_000_000
}

/// Whether a worker of a run has written something down.
fn has_workers(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name());
    names.any(|name| name.to_string_lossy().starts_with("worker-"))
}

/// Where the history of a run is written: beside what cargo builds.
fn history_folder(setup: &SetUp, seed: u64) -> PathBuf {
    torture_folder().join(format!("{}-{seed}-{}", setup.name, std::process::id()))
}

/// A relative folder is one of cargo's, and a test of cargo runs elsewhere: there the program's own
/// place tells where cargo builds.
fn torture_folder() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let named = named.filter(|folder| folder.is_absolute());
    let target = named.or_else(built_in).unwrap_or_else(|| "target".into());
    target.join("torture")
}

/// The folder in which cargo built this program: each profile has a folder in it.
fn built_in() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    program.ancestors().nth(2).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(words: &[&str]) -> String {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Arguments::of(&words).expect_err("it is refused")
    }

    #[test]
    fn wrong_words_are_refused_in_one_sentence_that_names_the_right_ones() {
        let message = refusal(&["--engine", "mysql"]);
        assert!(
            message.starts_with("unknown engine `mysql`; known are: sqlite, redis,"),
            "{message}"
        );
        assert!(refusal(&["--faults", "flood"]).contains("known are: worker-kill"));
        assert!(refusal(&["--seconds", "3"]).contains("from 4 to"));
        assert_eq!(refusal(&["--seed"]), "`--seed` needs a value");
        assert_eq!(refusal(&["fast"]), "unknown argument `fast`; `--help` lists them");
        assert!(refusal(&["--check", "x"]).contains("needs the one `--engine`"));
    }

    #[test]
    fn fault_that_a_set_up_lacks_is_refused() {
        let message = refusal(&["--faults", "worker,leader-kill", "--engine", "sqlite"]);
        let start = "`sqlite` has no fault `leader-kill`; it has: worker-disk-stall, worker-kill,";
        assert!(message.starts_with(start), "{message}");
        let message = refusal(&["--faults", "link"]);
        assert!(message.starts_with("`sqlite` has no fault `link`"), "{message}");
        let words = ["--faults", "none", "--engine", "sqlite"].map(str::to_owned);
        assert_eq!(Arguments::of(&words).expect("no fault is fine").faults, Some(Vec::new()));
    }

    #[test]
    fn faults_are_repeated_with_the_same_kinds() {
        let words = "--engine redis --seconds 9 --seed 4 --faults link,server-kill";
        let arguments = words.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let arguments = Arguments::of(&arguments).expect("nothing is wrong");
        assert_eq!(arguments.again("redis"), format!("cargo xtask torture {words}"));
        let words = ["--seconds", "9", "--seed", "4"].map(str::to_owned);
        let arguments = Arguments::of(&words).expect("nothing is wrong");
        let all = "cargo xtask torture --engine redis --seconds 9 --seed 4";
        assert_eq!(arguments.again("redis"), all);
    }

    #[test]
    fn whole_run_must_have_grants_and_faults_and_judge_what_it_sees() {
        let words = ["--engine", "redis"].map(str::to_owned);
        let arguments = Arguments::of(&words).expect("nothing is wrong");
        let kinds = (0..8).map(|kind| (format!("kind-{kind}"), 13));
        let mut summary = Summary { grants: 5_000, faults: kinds.collect(), ..Summary::default() };
        let short = |summary: &Summary, arguments: &Arguments| {
            let short = arguments.shortage(arguments.setups[0], summary);
            short.map(|text| text.replace("the run is too small: ", ""))
        };
        summary.judged.insert("order", Judged { judged: 9, excused: 0 });
        assert_eq!(short(&summary, &arguments), None);
        summary.judged.insert("order", Judged { judged: 9, excused: 90 });
        summary.grants = 4_999;
        summary.faults.remove("kind-7");
        let all =
            "4999 grants of 5000; 91 faults of 100, 7 kinds of 8; `order` judged 9 times of 10";
        assert_eq!(short(&summary, &arguments).as_deref(), Some(all));
        let arguments = Arguments { seconds: 119, ..arguments };
        assert_eq!(short(&summary, &arguments), None);
    }

    #[test]
    fn wrong_engine_is_only_one_of_a_file() {
        let words = ["--mutant", "script-fails", "--engine", "redis"];
        assert_eq!(refusal(&words), "`--mutant` needs `--engine sqlite`");
    }

    #[test]
    fn all_set_ups_run_by_default() {
        let arguments = Arguments::of(&[]).expect("nothing is wrong");
        assert_eq!(arguments.setups.len(), SETUPS.len());
    }
}
