//! The reads of verbs in a long line: the same commands as in a short one, with as few elements.
//!
//! A server's monitor shows every command of a script, with its arguments. The test counts each
//! command with the elements that it may answer or remove. A command by rank or score with an end
//! counts up to that end, and one without an end never passes. Beyond that a command on a sorted
//! set costs O(log n), which no count shows.

use futures_util::stream::{self, StreamExt};
use leasehold::Mode;
use leasehold::claim::{Claim, Standing};
use leasehold::engine::Engine;
use leasehold::redlock::Redlock;
use leasehold_testkit::Server;

use crate::redlock::{memory_only, url};
use crate::support::*;

/// The commands of scripts in a monitor's lines, with their elements.
fn weigh(lines: &[String]) -> Vec<(String, usize)> {
    let scripts = lines.iter().filter_map(|line| line.split_once(" lua] "));
    scripts.map(|(_, command)| weighed(command)).collect()
}

/// The command in a monitor's line, and the most elements that it is about.
fn weighed(line: &str) -> (String, usize) {
    let words: Vec<&str> = line.split("\" \"").map(|word| word.trim_matches('"')).collect();
    let command = words[0].to_ascii_uppercase();
    let upper: Vec<String> = words.iter().map(|word| word.to_ascii_uppercase()).collect();
    let limit = upper.iter().position(|word| word == "LIMIT");
    let elements = match command.as_str() {
        "ZRANGE" | "ZREVRANGE" | "ZRANGEBYSCORE" if limit.is_some() => {
            limit.and_then(|at| words.get(at + 2)?.parse().ok()).expect("a limit")
        }
        "ZRANGE" | "ZREVRANGE" if !upper.iter().any(|word| word.starts_with("BY")) => {
            let end = |at: usize| words[at].parse::<i64>().expect("a rank");
            let (first, last) = (end(2), end(3));
            assert!((first < 0) == (last < 0), "without an end: {line}");
            usize::try_from(last - first + 1).unwrap_or(0)
        }
        "ZRANGE" | "ZREVRANGE" | "ZRANGEBYSCORE" | "ZREMRANGEBYSCORE" | "ZREMRANGEBYRANK"
        | "HGETALL" | "HKEYS" | "HVALS" | "SMEMBERS" | "LRANGE" | "KEYS" | "SCAN" | "HSCAN"
        | "ZSCAN" => panic!("without an end: {line}"),
        _ => words.len(),
    };
    (command, elements)
}

/// A server whose scripts the test watches.
struct Watched<'a> {
    server: &'a Server,
    monitor: Monitor,
    /// Scripts that [`verbs`] call, including those that run after an answer.
    scripts: usize,
}

/// The reads of one claim's verbs in a line: join, heartbeat, ask, try, leave.
async fn verbs(engine: &impl Engine, seen: &mut Watched<'_>) -> Vec<(String, usize)> {
    let waiting = claim("report", Mode::Exclusive);
    seen.monitor.read(seen.server);
    queued(engine, &waiting).await;
    engine.renew(&[renewal(&waiting)]).await.expect("an answer");
    queued(engine, &waiting).await;
    let passer_by = Claim { join: false, ..claim("report", Mode::Exclusive) };
    let refused = engine.claim(&passer_by).await.expect("an answer");
    assert!(matches!(refused, Standing::Out { .. }), "{refused:?}");
    engine.release(&[waiting.key]).await.expect("an answer");
    let mut seen = weigh(&seen.monitor.read_scripts(seen.server, seen.scripts));
    assert!(seen.len() > 10, "{seen:?}");
    seen.sort();
    seen
}

/// Puts `count` more waiting claims into the line.
async fn lengthen(engine: &impl Engine, count: usize) {
    let joins = stream::iter(0..count).map(|_| async {
        queued(engine, &claim("report", Mode::Exclusive)).await;
    });
    joins.buffer_unordered(100).collect::<Vec<()>>().await;
}

/// The reads of verbs in lines of 10, 1,000 and nearly 10,000.
async fn at_three_lengths(
    engine: &impl Engine,
    server: &Server,
    scripts: usize,
) -> [Vec<(String, usize)>; 3] {
    let holder = claim("report", Mode::Exclusive);
    held(engine, &holder).await;
    let mut watched = Watched { server, monitor: Monitor::open(server), scripts };
    lengthen(engine, 10).await;
    // Once for connections and scripts.
    verbs(engine, &mut watched).await;
    let short = verbs(engine, &mut watched).await;
    lengthen(engine, 990).await;
    let longer = verbs(engine, &mut watched).await;
    lengthen(engine, 8_900).await;
    let longest = verbs(engine, &mut watched).await;
    // The hand-over.
    watched.monitor.read(server);
    engine.release(&[holder.key]).await.expect("an answer");
    let handed = weigh(&watched.monitor.read(server));
    let elements: usize = handed.iter().map(|(_, elements)| elements).sum();
    assert!(elements <= 120, "{elements} to hand a line of {} on", 9_900);
    [short, longer, longest]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_read_as_little_of_a_line_of_ten_thousand_as_of_ten() {
    let server = server().await;
    let engine = engine(format!("{}?timeout_ms=60000", server.url())).await;
    let [short, longer, longest] = at_three_lengths(&engine, &server, 5).await;
    assert_eq!(short, longer);
    assert_eq!(short, longest);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_of_a_node_read_as_little_of_a_line_of_ten_thousand_as_of_ten() {
    // One node is a quorum of one: the counts are those of a single node.
    let group = memory_only(1).await;
    let url = url(&group, "ttl_max_ms=600000&node_timeout_ms=60000");
    let engine = soon("a store", Redlock::open(&url)).await.expect("the store opens");
    // A refused try leaves the node after the answer.
    let [short, longer, longest] = at_three_lengths(&engine, &group.servers()[0], 6).await;
    assert_eq!(short, longer);
    assert_eq!(short, longest);
}
