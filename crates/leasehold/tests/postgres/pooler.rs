//! F73: a proxy in between that lends server connections for the length of a transaction.

use std::time::{Duration, Instant};

use leasehold::engine::Level;
use leasehold::layer::chaos::{Chaos, Verb};
use leasehold::postgres::LeaseTable;
use leasehold::{Client, Released, connect};
use leasehold_testkit::Pgbouncer;

use crate::support::{
    LONG, fresh_schema, granted, plain, server, soon, until, until_waiting, waiter,
};
use crate::warnings::{self, said_here};

#[tokio::test]
async fn f73_everything_works_behind_a_pooler_and_bells_fall_back_to_polling() {
    let pooler = Pgbouncer::before(server()).start().await.expect("a pooler");
    let schema = fresh_schema();
    let pooled = format!("{}?schema={schema}", pooler.url());
    let (one, two) = (connect(&pooled).await.expect("a"), connect(&pooled).await.expect("b"));
    let lease = one.mutex("n").ttl(LONG).lock().await.expect("a lease");
    assert!(two.mutex("n").try_lock().await.expect("an answer").is_none());
    let next = waiter(two.claim("n").ttl(LONG));
    until_waiting(&one, "n", 1).await;
    soon("a renewal", lease.extend(LONG)).await.expect("renewed");
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    let lease = granted(next).await;
    let findings = soon("the examination", two.examine()).await.expect("an answer");
    let bells = findings.iter().find(|finding| finding.subject == "bells").expect("looked at");
    assert_eq!(bells.level, Level::Warning, "{bells:?}");
    assert!(bells.found.contains("pooling proxy"), "{bells:?}");
    // Those with and without a pooler in between are in one line.
    let direct = connect(format!("{}?schema={schema}", server().url())).await.expect("connected");
    let next = waiter(direct.claim("n").ttl(LONG));
    until_waiting(&one, "n", 1).await;
    lease.release().await.expect("an answer");
    assert!(granted(next).await.is_held());
    let findings = direct.examine().await.expect("an answer");
    let bells = findings.iter().find(|finding| finding.subject == "bells").expect("looked at");
    assert_eq!(bells.level, Level::Good, "{bells:?}");
}

#[tokio::test]
async fn f73_many_clients_share_a_pool_of_one() {
    let pooler = Pgbouncer::before(server()).pool_size(1).start().await.expect("a pooler");
    let pooled = format!("{}?schema={}", pooler.url(), fresh_schema());
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let client = connect(&pooled).await.expect("connected");
        tasks.push(tokio::spawn(async move {
            for _ in 0..5 {
                let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
                lease.release().await.expect("an answer");
            }
        }));
    }
    for task in tasks {
        soon("all turns", task).await.expect("the task ends");
    }
}

#[tokio::test]
async fn f73_nothing_is_prepared_in_a_session_that_is_lent() {
    let pooler = Pgbouncer::before(server()).pool_size(1).start().await.expect("a pooler");
    let client = connect(format!("{}?schema={}", pooler.url(), fresh_schema())).await.expect("a");
    let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
    lease.release().await.expect("an answer");
    // The pool has one session, so this is the one that was lent for all of it.
    let plain = plain(pooler.url()).await;
    let prepared = "SELECT count(*) FROM pg_prepared_statements";
    let answer = plain.simple_query(prepared).await.expect("an answer");
    let count = answer.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    assert_eq!(count.as_deref(), Some("0"));
}

/// On one thread, which is whose warnings are read.
#[tokio::test(flavor = "current_thread")]
async fn f73_whoever_waits_behind_a_pooler_is_warned_and_asks_about_twice_a_second() {
    let pooler = Pgbouncer::before(server()).start().await.expect("a pooler");
    let pooled = format!("{}?schema={}", pooler.url(), fresh_schema());
    warnings::write_down();
    let one = connect(&pooled).await.expect("connected");
    let chaos = Chaos::default();
    let engine = chaos.trouble(LeaseTable::open(&pooled).await.expect("connected"));
    let two = Client::builder().engine(engine).expect("a client");
    let lease = one.mutex("n").ttl(LONG).lock().await.expect("a lease");
    assert_eq!(said_here(), Vec::<String>::new(), "nobody waits yet");
    let next = waiter(two.claim("n").ttl(LONG));
    until_waiting(&one, "n", 1).await;
    // On a busy machine it may try again before it knows.
    until("the warning", async || !said_here().is_empty()).await;
    let (begun, before) = (Instant::now(), chaos.calls(Verb::Claim));
    until("a few questions", async || chaos.calls(Verb::Claim) >= before + 5).await;
    // No pause is shorter than three tenths of a second.
    let most = begun.elapsed().as_millis() / 300 + 1;
    let asked = chaos.calls(Verb::Claim) - before;
    assert!(u128::from(asked) <= most, "{asked} questions, at most {most} in that time");
    let said = said_here();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("transaction-pooling proxy") && said[0].contains("500ms"), "{said:?}");
    lease.release().await.expect("an answer");
    let begun = Instant::now();
    assert!(granted(next).await.is_held());
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}
