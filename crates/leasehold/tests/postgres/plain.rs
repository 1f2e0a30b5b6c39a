//! Plain SQL clients on the same lines, and the check of a fence.

use std::time::Duration;

use leasehold::{Client, LockOptions, UnlessHeld, connect};
use leasehold_testkit::{Peer, PeerKind, Postgres, Server};

use crate::support::{
    LONG, fresh_schema, granted, plain, server, soon, truth, until, until_waiting, waiter,
};

struct Lab {
    client: Client,
    schema: String,
}

impl Lab {
    async fn new() -> Self {
        let schema = fresh_schema();
        let client = connect(format!("{}?schema={schema}", server().url())).await;
        let client = client.expect("connected");
        client.admin().install().await.expect("installed");
        Self { client, schema }
    }

    /// Runs statements with the functions at hand by their names.
    fn sql(&self, statements: &str) -> String {
        let path = format!("SET search_path = \"{}\"; {statements}", self.schema);
        server().sql(&path).expect("an answer")
    }

    fn refused(&self, statements: &str) -> String {
        let path = format!("SET search_path = \"{}\"; {statements}", self.schema);
        server().sql(&path).expect_err("refused").to_string()
    }
}

#[tokio::test]
async fn plain_clients_and_the_library_exclude_each_other() {
    let lab = Lab::new().await;
    assert_eq!(lab.sql("SELECT acquire_lock('n', 'worker-1')"), "t");
    assert!(lab.client.mutex("n").try_lock().await.unless_held().expect("an answer").is_none());
    assert_eq!(lab.sql("SELECT acquire_lock('n', 'worker-2')"), "f");
    let next = waiter(lab.client.request("n").ttl(LONG).note("release 42"));
    until_waiting(&lab.client, "n", 1).await;
    assert_eq!(lab.sql("SELECT release_lock('n', 'worker-2')"), "f");
    assert_eq!(lab.sql("SELECT release_lock('n', 'worker-1')"), "t");
    let lease = granted(next).await;
    assert_eq!(lab.sql("SELECT acquire_lock('n', 'worker-1')"), "f");
    let seen = "SELECT lock_name, holder_id, metadata FROM distributed_locks";
    let label = lab.client.holder().label().to_owned();
    assert_eq!(lab.sql(seen), format!("n|{label}|{{\"note\": \"release 42\"}}"));
    lease.release().await.expect("an answer");
    assert_eq!(lab.sql(seen), "");
}

#[tokio::test]
async fn plain_client_is_excluded_by_readers_and_refused_by_a_semaphore() {
    let lab = Lab::new().await;
    let readers = lab.client.rwlock("n");
    let [one, two] = [readers.read().await.expect("free"), readers.read().await.expect("shared")];
    assert_eq!(lab.sql("SELECT acquire_lock('n', 'me')"), "f");
    one.release().await.expect("an answer");
    assert_eq!(lab.sql("SELECT acquire_lock('n', 'me')"), "f");
    two.release().await.expect("an answer");
    assert_eq!(lab.sql("SELECT acquire_lock('n', 'me')"), "t");
    assert!(readers.try_read().await.unless_held().expect("an answer").is_none());
    let permit = lab.client.semaphore("s", 5).acquire().await.expect("free");
    let refused = lab.refused("SELECT acquire_lock('s', 'me')");
    assert!(refused.contains("in use as a semaphore"), "{refused}");
    permit.release().await.expect("an answer");
    assert_eq!(lab.sql("SELECT acquire_lock('s', 'me')"), "t");
}

#[tokio::test]
async fn the_same_holder_asking_again_extends() {
    let lab = Lab::new().await;
    // In one exchange, so that no time passes between the call and the look.
    let and_seconds = |call: &str| {
        let seconds = "SELECT round(extract(epoch FROM expires_at - clock_timestamp())) \
                       FROM distributed_locks";
        lab.sql(&format!("{call}; {seconds}"))
    };
    let acquired = and_seconds("SELECT acquire_lock('n', 'me', 10, '{\"job\": 7}')");
    assert_eq!(acquired, "t\n10");
    let again = and_seconds("SELECT acquire_lock(p_lock_name => 'n', p_holder_id => 'me')");
    assert_eq!(again, "t\n30", "the default");
    assert_eq!(and_seconds("SELECT extend_lock('n', 'me', 90.4)"), "t\n90");
    assert_eq!(lab.sql("SELECT extend_lock('n', 'you', 90)"), "f");
    assert_eq!(lab.sql("SELECT metadata->>'job' FROM distributed_locks"), "7");
    let line = lab.client.line("n").await.expect("an answer").expect("a line");
    assert_eq!(line.held[0].holder.label(), "me");
}

#[tokio::test]
async fn f45_expiry_counts_from_the_call_in_the_middle_of_a_long_transaction() {
    let lab = Lab::new().await;
    let took = lab.sql(
        "BEGIN; SELECT pg_sleep(1.2); SELECT acquire_lock('n', 'me', 5); \
         SELECT expires_at - acquired_at > interval '4 s', \
         acquired_at > now() + interval '1 s' FROM distributed_locks; COMMIT;",
    );
    assert_eq!(took.trim(), "t\nt|t", "it was not counted from the call");
    let other = soon("a grant", lab.client.mutex("n").lock()).await.expect("a lease");
    assert!(other.is_held());
}

#[tokio::test]
async fn a_name_in_somebodys_open_transaction_holds_up_nobody_else() {
    let lab = Lab::new().await;
    let lease =
        lab.client.mutex("other").ttl(Duration::from_secs(3)).lock().await.expect("a lease");
    let held_up = {
        let schema = lab.schema.clone();
        std::thread::spawn(move || {
            let open = format!(
                "SET search_path = \"{schema}\"; BEGIN; SELECT acquire_lock('n', 'me'); \
                 SELECT pg_sleep(4); ROLLBACK;"
            );
            server().sql(&open)
        })
    };
    let busy = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%{}%pg_sleep(4)%' AND \
                        wait_event = 'PgSleep'",
        lab.schema
    );
    until("the transaction", async || server().sql(&busy).expect("an answer") == "1").await;
    let asked = tokio::spawn({
        let mutex = lab.client.mutex("n").ttl(LONG);
        async move { mutex.lock().await }
    });
    for name in 0..20 {
        let mutex = lab.client.mutex(format!("free:{name}"));
        soon("a grant", mutex.lock()).await.expect("a lease").release().await.expect("an answer");
    }
    soon("a renewal", lease.extend(Duration::from_secs(3))).await.expect("renewed");
    // The client tries it again until the transaction is over, or gives up with an error that says
    // why.
    match soon("the end", asked).await.expect("the task ends") {
        Ok(lease) => assert!(lease.is_held()),
        Err(error) => assert!(error.to_string().contains("keeps the line locked"), "{error}"),
    }
    held_up.join().expect("it ends").expect("rolled back");
}

#[tokio::test]
async fn bad_input_of_plain_clients_is_refused() {
    let lab = Lab::new().await;
    let long = "x".repeat(513);
    for (call, word) in [
        ("acquire_lock('', 'me')".to_owned(), "1 to 512 bytes"),
        (format!("acquire_lock('{long}', 'me')"), "1 to 512 bytes"),
        ("acquire_lock(NULL, 'me')".to_owned(), "1 to 512 bytes"),
        ("acquire_lock('n', '')".to_owned(), "holder id"),
        (format!("acquire_lock('n', '{long}')"), "holder id"),
        ("acquire_lock('n', 'me', 0)".to_owned(), "between 0.1 and 86400"),
        ("acquire_lock('n', 'me', -1)".to_owned(), "between 0.1 and 86400"),
        ("acquire_lock('n', 'me', 'NaN')".to_owned(), "between 0.1 and 86400"),
        ("acquire_lock('n', 'me', 1e9)".to_owned(), "between 0.1 and 86400"),
        ("extend_lock('n', 'me', NULL)".to_owned(), "between 0.1 and 86400"),
        ("acquire_lock('n', 'me', 1, to_jsonb(repeat('x', 5000)))".to_owned(), "4096"),
    ] {
        let error = lab.refused(&format!("SELECT {call}"));
        assert!(error.contains(word), "{call}: {error}");
    }
    let odd = "acquire_lock(E'o\\'; DROP TABLE claims; --', E'a\\nb', 5)";
    assert_eq!(lab.sql(&format!("SELECT {odd}")), "t");
    let again = format!("SELECT {odd}, holder_id = E'a\\nb' FROM distributed_locks");
    assert_eq!(lab.sql(&again), "t|t");
    let line = lab.client.line("o'; DROP TABLE claims; --").await.expect("an answer");
    assert_eq!(line.expect("a line").held[0].holder.label(), "a?b", "safe to print");
}

#[tokio::test]
async fn a_paused_holders_late_write_is_refused_by_its_fence() {
    let lab = Lab::new().await;
    lab.sql("CREATE TABLE account (balance int); INSERT INTO account VALUES (0)");
    let mutex = lab
        .client
        .mutex("account")
        .ttl(Duration::from_millis(200))
        .options(LockOptions::new().renew(false));
    let paused = mutex.lock().await.expect("a lease");
    let other = lab.client.mutex("account").ttl(LONG);
    let next = soon("the end of its ttl", other.lock()).await.expect("a lease");
    let write = |fence: u64, amount: u32| {
        format!(
            "BEGIN; SELECT fence_check('account', {fence}); \
             UPDATE account SET balance = balance + {amount}; COMMIT;"
        )
    };
    lab.sql(&write(next.fence().as_u64(), 10));
    // The first holder wakes up and believes that it still holds.
    let error = lab.refused(&write(paused.fence().as_u64(), 1));
    assert!(error.contains("is old"), "{error}");
    lab.sql(&write(next.fence().as_u64(), 10));
    assert_eq!(lab.sql("SELECT balance FROM account"), "20");
    assert_eq!(lab.sql("SELECT fence_forget('account')"), "t");
}

async fn excludes(server: &Server, kind: PeerKind) {
    let client = connect(server.url()).await.expect("connected");
    client.admin().install().await.expect("installed");
    let name = format!("peer:{kind}");
    let mut peer = Peer::spawn(kind, &[server.url()]).await.expect("a peer");
    assert!(peer.try_lock(&name, LONG).await.expect("an answer"));
    assert!(client.mutex(&name).try_lock().await.unless_held().expect("an answer").is_none());
    assert!(peer.extend(&name, LONG).await.expect("an answer"));
    let next = waiter(client.request(&name).ttl(LONG));
    until_waiting(&client, &name, 1).await;
    assert!(peer.release(&name).await.expect("an answer"));
    let lease = granted(next).await;
    assert!(!peer.try_lock(&name, LONG).await.expect("an answer"));
    assert!(!peer.extend(&name, LONG).await.expect("an answer"));
    lease.release().await.expect("an answer");
    assert!(peer.lock(&name, Duration::from_millis(500), LONG).await.expect("an answer"));
    peer.kill().expect("killed");
    // Its lock expires after its ttl.
    drop(soon("a grant", client.mutex(&name).lock()).await.expect("a lease"));
}

/// Takes locks with as few arguments as possible, and reads them in the view.
async fn sees(server: &Server, kind: PeerKind) {
    let client = connect(server.url()).await.expect("connected");
    client.admin().install().await.expect("installed");
    let name = format!("seen:{kind}");
    let mut peer = Peer::spawn(kind, &[server.url()]).await.expect("a peer");
    let mut other = Peer::spawn(kind, &[server.url()]).await.expect("a peer");
    assert_eq!(peer.see(&name).await.expect("an answer"), "free");
    assert!(peer.take(&name).await.expect("an answer"));
    assert!(!other.take(&name).await.expect("an answer"));
    assert!(!other.keep(&name).await.expect("an answer"));
    assert!(client.mutex(&name).try_lock().await.unless_held().expect("an answer").is_none());
    let line = client.line(&name).await.expect("an answer").expect("a line");
    let holder = line.held[0].holder.label().to_owned();
    assert!(holder.starts_with(&format!("{kind}:")), "{holder}");
    // Every reader sees it, with the default ttl and without metadata.
    assert_eq!(other.see(&name).await.expect("an answer"), format!("{holder} 30 {{}}"));
    assert!(peer.extend(&name, LONG).await.expect("an answer"));
    let seen = other.see(&name).await.expect("an answer");
    assert!(seen.starts_with(&format!("{holder} 30")) && seen != format!("{holder} 30 {{}}"));
    // A renewal with the default ttl ends the lock no sooner.
    assert!(peer.keep(&name).await.expect("an answer"));
    let seen = other.see(&name).await.expect("an answer");
    let seconds: u32 = seen.split(' ').nth(1).expect("a span").parse().expect("a number");
    assert!((31..=300).contains(&seconds), "{seen}");
    assert!(peer.release(&name).await.expect("an answer"));
    assert!(other.mark(&name, "{\"job\":7}").await.expect("an answer"));
    let seen = peer.see(&name).await.expect("an answer");
    assert!(seen.ends_with(" 30 {\"job\": 7}") && !seen.starts_with(&holder), "{seen}");
    assert!(other.release(&name).await.expect("an answer"));
    // The view also has the library's locks.
    let lease = client.mutex(&name).ttl(LONG).note("by hand").lock().await.expect("free");
    let seen = peer.see(&name).await.expect("an answer");
    let label = client.holder().label();
    assert_eq!(seen, format!("{label} 300 {{\"note\": \"by hand\"}}"));
    lease.release().await.expect("an answer");
    assert_eq!(peer.see(&name).await.expect("an answer"), "free");
}

#[tokio::test]
async fn psycopg_and_asyncpg_read_the_view_and_use_the_default_arguments() {
    let server = Postgres::new().start().await.expect("a server");
    for kind in PeerKind::ON_POSTGRES {
        sees(&server, kind).await;
    }
}

#[tokio::test]
async fn psycopg_and_asyncpg_take_part_as_applications_write_it() {
    let server = Postgres::new().start().await.expect("a server");
    for kind in PeerKind::ON_POSTGRES {
        excludes(&server, kind).await;
    }
}

#[tokio::test]
async fn plain_client_that_is_refused_in_an_open_transaction_keeps_nobody_from_renewing() {
    let lab = Lab::new().await;
    let url = format!("{}?schema={}", server().url(), lab.schema);
    let builder = Client::builder().renew_at_percent(20);
    let holder = soon("a client", builder.connect(url)).await.expect("connected");
    let path = format!("SET search_path = \"{}\"", lab.schema);
    for waits in [false, true] {
        let lease = holder.mutex("n").ttl(Duration::from_secs(3)).lock().await.expect("free");
        let next = waits.then(|| waiter(lab.client.request("n").ttl(LONG)));
        if waits {
            until_waiting(&lab.client, "n", 1).await;
        }
        let other = plain(server().url()).await;
        other.batch_execute(&format!("{path}; BEGIN")).await.expect("begun");
        let calls = ["acquire_lock('n', 'w')", "extend_lock('n', 'w')", "release_lock('n', 'w')"];
        for call in calls {
            let answered = truth(&other, &format!("SELECT {call}")).await;
            assert!(!answered, "{call}");
            let before = lease.deadline();
            until("a renewal", async || lease.deadline() > before).await;
        }
        other.batch_execute("COMMIT").await.expect("ended");
        lease.release().await.expect("an answer");
        if let Some(next) = next {
            granted(next).await.release().await.expect("an answer");
        }
    }
}
