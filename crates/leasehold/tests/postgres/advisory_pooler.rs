//! F73 on advisory locks: a proxy that lends server sessions, and a session that is not the same as
//! before.

use leasehold::advisory::Keys;
use leasehold::engine::Level;
use leasehold::{Client, Error, LeaseState, Name, Released, connect};
use leasehold_testkit::{Pgbouncer, Postgres, Server};

use crate::support::{LONG, granted, plain, server, soon, until_waiting, waiter};

const HEARTBEAT: &str = "SELECT pg_backend_pid()";
const GIVING_BACK: &str = "SELECT pg_advisory_unlock($1::bigint)";

#[tokio::test]
async fn f73_a_pooling_proxy_is_refused_with_the_reason_and_the_alternative() {
    let transactions = Pgbouncer::before(server());
    let sessions = transactions.clone().pool_sessions();
    // One refuses the settings of a session, the other drops them.
    for (pooler, ignored) in
        [(&transactions, ""), (&transactions, "options"), (&sessions, ""), (&sessions, "options")]
    {
        let pooler = pooler.clone().ignore(ignored).start().await.expect("a pooler");
        let url = pooler.url().replace("postgres://", "postgres+advisory://");
        let error = connect(&url).await.expect_err("refused");
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("PgBouncer") && text.contains("`postgres://`"), "{text}");
    }
}

/// A server whose own defaults are the settings that leasehold asks for. So those settings do not
/// show that a proxy dropped the request.
async fn deceptive() -> Server {
    // The timeout for the default ttl: the ttl, a tenth of it and 0.1 s.
    let postgres = Postgres::new().setting("idle_session_timeout", "33100");
    postgres.start().await.expect("a server")
}

/// The answer to a statement in a pooled session, without preparing it.
async fn word(client: &tokio_postgres::Client, statement: &str) -> String {
    let answer = client.simple_query(statement).await.expect("an answer");
    let word = answer.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    word.expect("a row")
}

/// A pool of one session, which the engine shares with the test's own statements.
struct Pool {
    server: Server,
    pooler: Server,
    plain: tokio_postgres::Client,
}

impl Pool {
    async fn of_one() -> Self {
        let server = deceptive().await;
        let pooler = Pgbouncer::before(&server).pool_size(1).ignore("options");
        let pooler = pooler.start().await.expect("a pooler");
        let plain = plain(pooler.url()).await;
        Self { server, pooler, plain }
    }

    async fn client(&self) -> Client {
        let url = self.pooler.url().replace("postgres://", "postgres+advisory://");
        connect(url).await.expect("nothing tells it")
    }

    /// The name under which a statement is prepared.
    async fn name(&self, statement: &str) -> String {
        let named =
            format!("SELECT name FROM pg_prepared_statements WHERE statement = '{statement}'");
        word(&self.plain, &named).await
    }

    /// How often a prepared statement has run.
    async fn asked(&self, name: &str) -> String {
        let asked = format!(
            "SELECT generic_plans + custom_plans FROM pg_prepared_statements WHERE name = '{name}'"
        );
        word(&self.plain, &asked).await
    }

    /// Puts another server process behind the pooler and prepares the same statements there.
    /// Without them it would refuse the client's.
    async fn replace(&self, statements: &[(&str, &str)]) {
        let mut prepares = Vec::new();
        for (statement, types) in statements {
            let name = self.name(statement).await;
            prepares.push(format!("PREPARE {name} {types} AS {statement}"));
        }
        let before = word(&self.plain, HEARTBEAT).await;
        let end = format!("SELECT pg_terminate_backend({before}, 10000)");
        self.server.sql(&end).expect("ended");
        let after = soon("another process", async {
            loop {
                // The pooler may learn by this question that its connection is gone.
                if let Ok(answer) = self.plain.simple_query("SELECT 1").await {
                    break answer;
                }
            }
        });
        assert!(!after.await.is_empty());
        assert_ne!(word(&self.plain, HEARTBEAT).await, before);
        for prepare in prepares {
            self.plain.simple_query(&prepare).await.expect("prepared");
        }
    }
}

#[tokio::test]
async fn f73_an_answer_of_another_server_process_ends_the_session_and_its_leases() {
    let pool = Pool::of_one().await;
    let client = pool.client().await;
    let findings = client.admin().examine().await.expect("an answer");
    let proxy = findings.iter().find(|finding| finding.subject == "proxy").expect("looked at");
    assert_eq!(proxy.level, Level::Bad, "{proxy:?}");
    let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let name = pool.name(HEARTBEAT).await;
    pool.replace(&[(HEARTBEAT, "")]).await;
    assert!(lease.is_held(), "nobody can know yet");
    let error = soon("an answer", lease.extend(LONG)).await.expect_err("it is gone");
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    assert_eq!(lease.state(), LeaseState::Lost);
    assert_eq!(pool.asked(&name).await, "1", "it was answered, by the wrong process");
}

#[tokio::test]
async fn f73_giving_back_what_another_server_process_does_not_know_ends_the_session() {
    let pool = Pool::of_one().await;
    let client = pool.client().await;
    let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let other = client.mutex("m").ttl(LONG).lock().await.expect("a lease");
    let names = (pool.name(HEARTBEAT).await, pool.name(GIVING_BACK).await);
    pool.replace(&[(HEARTBEAT, ""), (GIVING_BACK, "(bigint)")]).await;
    assert!(lease.is_held() && other.is_held(), "nobody can know yet");
    let error = soon("an answer", lease.release()).await.expect_err("it is not ours");
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    assert_eq!(pool.asked(&names.1).await, "1", "it was answered, by the wrong process");
    assert_ne!(pool.asked(&names.0).await, "0", "which was asked who it is");
    // Long before a renewal is due.
    soon("the loss of the other", other.lost()).await;
}

#[tokio::test]
async fn giving_back_what_somebody_else_gave_back_says_so_and_keeps_the_session() {
    let pool = Pool::of_one().await;
    let client = pool.client().await;
    let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let other = client.mutex("m").ttl(LONG).lock().await.expect("a lease");
    let name = pool.name(HEARTBEAT).await;
    let before = pool.asked(&name).await;
    let key = Keys::Sha256.key(&Name::new("n").expect("a name")).expect("a key");
    let stray = format!("SELECT pg_advisory_unlock({key})");
    assert_eq!(word(&pool.plain, &stray).await, "t");
    let released = soon("an answer", lease.release()).await.expect("an answer");
    assert_eq!(released, Released::AlreadyExpired);
    assert_ne!(pool.asked(&name).await, before, "the process was asked who it is");
    assert!(other.is_held());
    assert_eq!(other.release().await.expect("an answer"), Released::Released);
}

#[tokio::test]
async fn f73_a_session_that_a_pooler_lends_is_lost_with_its_server_process() {
    let server = deceptive().await;
    let pooler = Pgbouncer::before(&server).pool_sessions().ignore("options");
    let pooler = pooler.start().await.expect("a pooler");
    let advisory = |url: &str| url.replace("postgres://", "postgres+advisory://");
    let client = connect(advisory(pooler.url())).await.expect("nothing tells it");
    let other = connect(advisory(server.url())).await.expect("connected");
    let lease = client.mutex("n").ttl(LONG).lock().await.expect("a lease");
    let next = waiter(other.request("n").ttl(LONG));
    until_waiting(&other, "n", 1).await;
    let holder = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks \
                  WHERE locktype = 'advisory' AND granted";
    assert_eq!(server.sql(holder).expect("an answer"), "1");
    // Long before a renewal is due.
    soon("the loss", lease.lost()).await;
    assert!(granted(next).await.fence() > lease.fence());
}
