//! The rights on the engine's page: enough for everything, and none to spare.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use leasehold::claim::{Claim, Mode, Note, Renewal};
use leasehold::engine::{
    Administer, Amend, Convert, Counting, Counts, Engine, Level, Notice, Query, Resize, Wait,
    WaitNotices, Watch,
};
use leasehold::error::Config;
use leasehold::redis::Redis;
use leasehold::{Error, Holder, Result};
use leasehold_testkit::{Server, servers};

use crate::support::*;

const PAGE: &str = include_str!("../../../../docs/engines/redis.md");
const PASSWORD: &str = "hush";

/// The rules on the page, from the word after the password.
fn rules() -> Vec<String> {
    let command = PAGE.split("```").find(|block| block.contains("ACL SETUSER")).expect("a command");
    let words = command.split_whitespace().filter(|word| *word != "\\");
    let rules = words.skip_while(|word| *word != ">PASSWORD").skip(1);
    rules.map(str::to_owned).collect()
}

fn give(server: &Server, rules: &[&str]) {
    let password = format!(">{PASSWORD}");
    let mut command = vec!["ACL", "SETUSER", "locks", "reset", "on", &password];
    command.extend(rules);
    told(server, &command);
}

fn as_locks(server: &Server) -> String {
    format!("redis://locks:{PASSWORD}@{}", server.address())
}

async fn renewed(engine: &Redis, renewals: &[Renewal]) -> Result<()> {
    engine.renew(renewals).await?.into_iter().try_for_each(|answer| answer.map(drop))
}

/// All calls of a client on one server.
async fn round(server: &Server, name: &str) -> Result<()> {
    round_at(&as_locks(server), &[server], name).await
}

/// All calls of a client. An error means that a right is missing.
async fn round_at(url: &str, servers: &[&Server], name: &str) -> Result<()> {
    let (one, two) = (Redis::open(url).await?, Redis::open(url).await?);
    let mut events = two.watch(&Query::all()).await?;
    let (first, next) = (claim(name, Mode::Exclusive), claim(name, Mode::Exclusive));
    // Ahead of the clock, so that the path for clocks that fell back runs.
    one.claim(&first).await?;
    one.release(std::slice::from_ref(&first.key)).await?;
    for server in servers {
        for counter in told(server, &["KEYS", "leasehold:*fence*"]).lines() {
            told(server, &["SET", counter, "9007199254740993000"]);
        }
    }
    one.claim(&first).await?;
    soon("an event", events.next()).await.expect("no end")?;
    two.claim(&Claim { join: false, ..next.clone() }).await?;
    renewed(&one, &[renewal(&first)]).await?;
    two.claim(&next).await?;
    one.inspect(&Query::all()).await?;
    renewed(&one, &[renewal(&first), renewal(&next)]).await?;
    one.release(std::slice::from_ref(&first.key)).await?;
    soon("a bell", two.wait(&next.key)).await?;
    one.evict(&eviction(&one, &next.key.name).await?).await?;
    let alone = claim(name, Mode::Exclusive);
    one.claim(&alone).await?;
    one.set_note(&alone.key, &Note::new("later")?).await?;
    for mode in [Mode::Shared, Mode::Exclusive] {
        one.set_mode(&alone.key, mode).await?;
    }
    one.release(&[alone.key]).await?;
    for mode in [Mode::Shared, Mode::Permits { take: 1, of: 2 }] {
        let (first, next) = (claim(name, mode), claim(name, mode));
        one.claim(&first).await?;
        two.claim(&next).await?;
        renewed(&one, &[renewal(&first), renewal(&next)]).await?;
        if let Mode::Permits { .. } = mode {
            let name = first.key.name.clone();
            one.resize(&Resize { name, of: 3, by: Holder::fresh() }).await?;
        }
        one.release(&[first.key, next.key]).await?;
    }
    let keep = Duration::from_secs(1);
    let wait = Wait { name: first.key.name.clone(), fence: 1, keeps: Vec::new() };
    let (holder, client) = (first.holder.id(), 1);
    for waits in [vec![wait], Vec::new()] {
        one.announce(&Notice { holder, client, waits, keep }).await?;
        one.waits_of(holder).await?;
    }
    let other = claim(&format!("{name} too"), Mode::Exclusive);
    // A Cluster does not have this part.
    if let Some(part) = Arc::new(one.clone()).parts().claim_many {
        part.claim_all(&[first.clone(), other.clone()]).await?;
        part.claim_all(&[first.clone(), other.clone()]).await?;
    }
    one.release(&[first.key, other.key]).await?;
    one.tally(&Counts { acquired: 1, ..Counts::default() }).await?;
    one.totals().await?;
    Ok(())
}

/// The finding of doctor about the rights; `None` if it cannot even open the store or look at it.
async fn doctor(server: &Server) -> Option<Level> {
    let engine = Redis::open(as_locks(server)).await.ok()?;
    let findings = engine.examine().await.ok()?;
    Some(about(&findings, "rights").level)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn printed_rights_are_enough_for_everything_and_none_can_be_spared() {
    let server = server().await;
    let rules = rules();
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    give(&server, &rules);
    soon("a round", round(&server, "all")).await.expect("no right is missing");
    assert_eq!(soon("doctor", doctor(&server)).await, Some(Level::Good));
    let denied = told(&server, &["ACL", "LOG"]);
    assert_eq!(denied, "", "something was refused and swallowed");
    let mut idle = Vec::new();
    let mut unseen = Vec::new();
    for spared in rules.iter().filter(|rule| **rule != "resetchannels") {
        told(&server, &["FLUSHALL"]);
        told(&server, &["SCRIPT", "FLUSH"]);
        give(&server, &rules.iter().copied().filter(|rule| rule != spared).collect::<Vec<_>>());
        match soon("a round", round(&server, "spared")).await {
            Ok(()) => idle.push(*spared),
            Err(Error::Config(Config::Denied { .. })) => {}
            Err(error) => panic!("{spared}: {error:?}"),
        }
        if soon("doctor", doctor(&server)).await == Some(Level::Good) {
            unseen.push(*spared);
        }
    }
    assert_eq!(idle, [""; 0], "nothing needs these");
    assert_eq!(unseen, [""; 0], "doctor says that all is well without these");
}

/// Needs exactly the printed rights and `further` ones.
async fn needs(url: &str, servers: &[&Server], further: &[&str]) {
    let rules = rules();
    let printed = rules.iter().map(String::as_str);
    let all: Vec<&str> = printed.chain(further.iter().copied()).collect();
    for spared in further {
        let fewer: Vec<&str> = all.iter().copied().filter(|rule| rule != spared).collect();
        for server in servers {
            give(server, &fewer);
        }
        let missing = soon("a round", round_at(url, servers, "spared")).await;
        assert!(missing.is_err(), "{url} does not need {spared}");
    }
    for server in servers {
        give(server, &all);
    }
    soon("a round", round_at(url, servers, "all")).await.expect("no right is missing");
}

/// Whether the page lists this right as one that may be needed.
fn is_printed(right: &str) -> bool {
    PAGE.contains(&format!("`{right}`"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_and_replicas_need_one_right_each() {
    assert!(is_printed("+select") && is_printed("+wait"));
    let (server, replica) = (server().await, server().await);
    needs(&format!("{}/3", as_locks(&server)), &[&server], &["+select"]).await;
    told(&replica, &["REPLICAOF", "127.0.0.1", &server.port().to_string()]);
    let url = format!("{}?wait_replicas=1&wait_ms=10000", as_locks(&server));
    until("a replica", async || told(&server, &["WAIT", "1", "100"]) == "1").await;
    needs(&url, &[&server], &["+wait"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_needs_one_right_more() {
    assert!(is_printed("+role"));
    let group = servers::Redis::new().start_sentinel().await.expect("sentinels start");
    let url = group.url().replace("://", &format!("://locks:{PASSWORD}@"));
    needs(&url, &[group.first_master()], &["+role"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_needs_one_right_more() {
    assert!(is_printed("+cluster"));
    let group = servers::Redis::new().start_cluster().await.expect("a cluster starts");
    let url = group.url().replace("://", &format!("://locks:{PASSWORD}@"));
    let servers: Vec<&Server> = group.servers().iter().collect();
    needs(&url, &servers, &["+cluster"]).await;
}
