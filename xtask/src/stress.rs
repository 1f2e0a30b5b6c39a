//! `cargo xtask stress`: repeats tests until one fails, and prints how often and in which rounds.
//!
//! The user names a test by a part of its name, as for `cargo test`. `programs` builds the tests
//! and `jobs` runs them.

use std::process::{Command, Stdio};

use crate::jobs::{Done, Job, run_all};
use crate::load::Load;
use crate::programs::{Kind, Program, build};
use crate::test::log_folder;
use crate::{Failure, family, load, needs};

const USAGE: &str = "`stress` takes `[--rounds N] [--load N] TEST…`";

/// This program starts a server of every kind to list its tests.
const SLOW_TO_LIST: &str = "conformance";

/// The tests to repeat, and how often.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    /// The number of rounds; without it the first failure is the end.
    rounds: Option<usize>,
    load: Option<usize>,
    tests: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let plan = Plan::parsed(arguments)?;
    family::guarded(|| {
        needs::check()?;
        let chosen = chosen(build(&[])?, &plan.tests)?;
        let count: usize = chosen.iter().map(|(_, names)| names.len()).sum();
        println!("stress: {count} tests a round");
        let _load = plan.load.map(Load::start);
        repeat(&chosen, plan.rounds)
    })
}

impl Plan {
    fn parsed(arguments: &[String]) -> Result<Plan, Failure> {
        let usage = || Failure::Message(USAGE.to_owned());
        let (load, rest) = load::parsed(arguments)?;
        let (mut rounds, mut tests) = (None, Vec::new());
        let mut words = rest.into_iter();
        while let Some(word) = words.next() {
            if word == "--rounds" {
                let number = words.next().and_then(|word| word.parse().ok()).ok_or_else(usage)?;
                rounds = Some(number);
            } else if word.starts_with('-') {
                return Err(usage());
            } else {
                tests.push(word);
            }
        }
        if tests.is_empty() { Err(usage()) } else { Ok(Plan { rounds, load, tests }) }
    }
}

/// The programs with tests that match, and the full names of those tests.
fn chosen(
    mut programs: Vec<Program>,
    tests: &[String],
) -> Result<Vec<(Program, Vec<String>)>, Failure> {
    programs.retain(|program| program.kind != Kind::Example);
    programs.sort_by_key(|program| program.name == SLOW_TO_LIST);
    let mut chosen: Vec<(Program, Vec<String>)> = Vec::new();
    for test in tests {
        let mut found = false;
        for program in &programs {
            if program.name == SLOW_TO_LIST && found {
                continue;
            }
            let names = listed(program, test)?;
            found |= !names.is_empty();
            add(&mut chosen, program, names);
        }
        if !found {
            return Err(Failure::Message(format!("no test has `{test}` in its name")));
        }
    }
    Ok(chosen)
}

/// Adds tests of a program, each once.
fn add(chosen: &mut Vec<(Program, Vec<String>)>, program: &Program, names: Vec<String>) {
    let known = chosen.iter().position(|(known, _)| known == program);
    let index = known.unwrap_or_else(|| {
        chosen.push((program.clone(), Vec::new()));
        chosen.len() - 1
    });
    for name in names {
        if !chosen[index].1.contains(&name) {
            chosen[index].1.push(name);
        }
    }
    chosen.retain(|(_, names)| !names.is_empty());
}

/// The jobs of a round. Each program gets one job with the names of all its tests. The conformance
/// suite gets one job for each name.
fn jobs(chosen: &[(Program, Vec<String>)]) -> Vec<Job> {
    let exactly = |program: &Program, names: &[String]| {
        let words: Vec<String> = [&["--exact".to_owned()], names].concat();
        program.job(&words)
    };
    let mut jobs = Vec::new();
    for (program, names) in chosen {
        if program.name != SLOW_TO_LIST {
            jobs.push(exactly(program, names));
            continue;
        }
        for name in names {
            let job = exactly(program, std::slice::from_ref(name));
            jobs.push(Job { title: format!("{} {name}", job.title), ..job });
        }
    }
    jobs
}

/// The tests of a program whose names contain `test`.
fn listed(program: &Program, test: &str) -> Result<Vec<String>, Failure> {
    let mut command: Command = program.command();
    command.args(["--list", test]).stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::null());
    let cannot = |what: &dyn std::fmt::Display| {
        Failure::Message(format!("cannot list the tests of `{}`: {what}", program.title()))
    };
    let child = family::spawn(&mut command).map_err(|error| cannot(&error))?;
    let id = child.id();
    let output = child.wait_with_output().map_err(|error| cannot(&error))?;
    family::forget(id);
    if !output.status.success() {
        return Err(cannot(&output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

fn repeat(chosen: &[(Program, Vec<String>)], rounds: Option<usize>) -> Result<(), Failure> {
    let mut failed = Vec::new();
    let mut round = 0;
    while rounds.is_none_or(|rounds| round < rounds) {
        round += 1;
        let mut passed = true;
        let ran = run_all(jobs(chosen), usize::MAX, &log_folder(), |done| {
            passed &= done.passed;
            say(round, done);
        });
        ran.map_err(|error| Failure::Message(format!("cannot run: {error}")))?;
        if !passed {
            failed.push(round);
            if rounds.is_none() {
                break;
            }
        }
    }
    println!("{}", verdict(round, &failed));
    if failed.is_empty() { Ok(()) } else { Err(Failure::Reported) }
}

fn say(round: usize, done: &Done) {
    let (title, wall) = (&done.title, done.wall.as_secs_f64());
    let verdict = if done.passed { "ok    " } else { "FAILED" };
    println!("   round {round:<4} {verdict}  {title} {wall:.1} s");
    if !done.passed {
        print!("{}", String::from_utf8_lossy(&std::fs::read(&done.log).unwrap_or_default()));
    }
}

fn verdict(rounds: usize, failed: &[usize]) -> String {
    if failed.is_empty() {
        return format!("{rounds} rounds, none failed");
    }
    let list: Vec<String> = failed.iter().map(usize::to_string).collect();
    format!("{rounds} rounds, {} failed: {}", failed.len(), list.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Plan, Failure> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Plan::parsed(&words)
    }

    #[test]
    fn options_are_separated_from_tests() {
        let plan = parsed("--rounds 5 one --load 3 two").expect("good arguments");
        let tests = ["one", "two"].map(str::to_owned).to_vec();
        assert_eq!(plan, Plan { rounds: Some(5), load: Some(3), tests });
        let plan = parsed("one").expect("good arguments");
        assert_eq!((plan.rounds, plan.load), (None, None));
    }

    #[test]
    fn missing_test_and_bad_number_are_refused() {
        for text in ["", "--rounds 5", "--rounds many one", "--fast one"] {
            assert!(matches!(parsed(text), Err(Failure::Message(_))), "{text}");
        }
    }

    fn program(name: &str) -> Program {
        let message = format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/box/Cargo.toml",
            "target":{{"kind":["test"],"name":"{name}"}},"profile":{{"test":true}},
            "executable":"/w/target/debug/deps/{name}-1"}}"#
        );
        Program::from_message(&message).expect("a test program")
    }

    #[test]
    fn tests_that_two_words_choose_run_once() {
        let mut chosen = Vec::new();
        for names in [vec!["a", "b"], vec![], vec!["b", "c"]] {
            add(&mut chosen, &program("tests"), names.into_iter().map(str::to_owned).collect());
        }
        let [(_, names)] = &chosen[..] else { panic!("one program: {chosen:?}") };
        assert_eq!(names, &["a", "b", "c"]);
        assert_eq!(jobs(&chosen).len(), 1);
    }

    #[test]
    fn each_case_of_the_conformance_suite_is_a_job() {
        let names = ["redis::a", "sqlite::a"].map(str::to_owned).to_vec();
        let jobs = jobs(&[(program(SLOW_TO_LIST), names)]);
        let titles: Vec<&str> = jobs.iter().map(|job| job.title.as_str()).collect();
        assert_eq!(titles, ["box conformance redis::a", "box conformance sqlite::a"]);
        let words: Vec<_> =
            jobs[0].command.get_args().skip_while(|word| *word != "--exact").collect();
        assert_eq!(words, ["--exact", "redis::a"]);
    }

    #[test]
    fn failed_rounds_are_listed() {
        assert_eq!(verdict(12, &[]), "12 rounds, none failed");
        assert_eq!(verdict(12, &[3, 7]), "12 rounds, 2 failed: 3, 7");
    }
}
