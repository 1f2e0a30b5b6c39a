//! Bells that do not arrive, lines under resets, and how many claims wake.

use std::time::Duration;

use leasehold::layer::chaos::{Chaos, Trouble, Verb};
use leasehold::{Client, Mode, Released};
use leasehold_testkit::servers;

use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f110_waiter_that_hears_no_bell_at_all_is_granted_by_its_heartbeat() {
    let rules = "~* &leasehold:* +@all";
    let options = servers::Redis::new().user("deaf", "hush", rules);
    let server = options.start().await.expect("a server starts");
    let holder = client(server.url()).await;
    let deaf = client(format!("redis://deaf:hush@{}", server.address())).await;
    let lease = holder.mutex("report").ttl(LONG).lock().await.expect("free");
    let waiter = Waiter::queue(&holder, &deaf, "report", 0).await;
    let mailboxes =
        || told(&server, &["PUBSUB", "CHANNELS", "leasehold:mailbox:*"]).lines().count();
    assert_eq!(mailboxes(), 2);
    // Ends its mailbox, and forbids it to open a new one; everything else works.
    told(&server, &["ACL", "SETUSER", "deaf", "resetchannels", "&leasehold:events:*"]);
    assert_eq!(mailboxes(), 1, "the holder's own");
    let fence = lease.fence();
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    let next = waiter.granted().await;
    assert!(next.is_held() && next.fence() > fence);
    assert_eq!(mailboxes(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f111_mailbox_cut_at_the_release_loses_nobody() {
    let server = server().await;
    let (holder, waiting) = (client(server.url()).await, client(server.url()).await);
    for round in 0..20 {
        let lease = holder.mutex("report").ttl(LONG).lock().await.expect("free");
        let waiter = Waiter::queue(&holder, &waiting, "report", 0).await;
        // Before the release and beside it, alternately.
        if round % 2 == 0 {
            told(&server, &["CLIENT", "KILL", "TYPE", "pubsub"]);
        }
        let released = tokio::spawn(async move { lease.release().await });
        if round % 2 == 1 {
            told(&server, &["CLIENT", "KILL", "TYPE", "pubsub"]);
        }
        released.await.expect("no panic").expect("an answer");
        let next = waiter.granted().await;
        next.release().await.expect("an answer");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f111_waiter_asks_when_its_mailbox_comes_back() {
    let options = servers::Redis::new().user("deaf", "hush", "~* &leasehold:* +@all");
    let server = options.start().await.expect("a server starts");
    let holder = client(server.url()).await;
    let (chaos, url) = (Chaos::default(), format!("redis://deaf:hush@{}", server.address()));
    let engine = chaos.trouble(engine(url).await);
    let waiting = Client::builder().engine(engine).expect("a client");
    let lease = holder.mutex("report").ttl(LONG).lock().await.expect("free");
    // Without heartbeats nothing but the mailbox can bring the waiter back before the ttl.
    chaos.next(Verb::Renew, Trouble::Refuse, u32::MAX);
    let waiter = Waiter::queue(&holder, &waiting, "report", 0).await;
    // Ends the mailbox, so that no client hears the bell; then the client may open it again.
    told(&server, &["ACL", "SETUSER", "deaf", "resetchannels", "&leasehold:events:*"]);
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    told(&server, &["ACL", "SETUSER", "deaf", "&leasehold:*"]);
    assert!(waiter.granted().await.is_held());
    assert_eq!(chaos.calls(Verb::Claim), 2, "one to join, and one when the mailbox was back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f116_one_release_wakes_one_of_a_thousand() {
    const WAITERS: usize = 1_000;
    let server = server().await;
    // On a busy machine a late answer must not make a client ask again.
    let url = format!("{}?timeout_ms=60000", server.url());
    let holder = client(&url).await;
    let lease = holder.mutex("report").ttl(LONG).lock().await.expect("free");
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(client(&url).await);
    }
    let waiters: Vec<Waiter> = (0..WAITERS)
        .map(|number| Waiter::start(clients[number % 4].request("report").ttl(LONG)))
        .collect();
    until_waiting(&holder, "report", WAITERS).await;
    let claimed = calls(&server, "zadd");
    let before = calls(&server, "publish");
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    until("one grant", async || waiters.iter().any(|waiter| !waiter.is_waiting())).await;
    // Heartbeats of all waiters come and go meanwhile; they must not wake a claim either.
    until("heartbeats", async || calls(&server, "zadd") >= claimed + WAITERS as u64).await;
    let woken = waiters.iter().filter(|waiter| !waiter.is_waiting()).count();
    assert_eq!(woken, 1);
    // One message with two events, `released` and `granted`, and one bell.
    assert_eq!(calls(&server, "publish") - before, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f116_released_writer_wakes_the_readers_that_fit_and_nobody_else() {
    let server = server().await;
    let one = client(server.url()).await;
    let lease = one.mutex("report").ttl(LONG).lock().await.expect("free");
    let mut waiters = Vec::new();
    for before in 0..6 {
        // Two readers, a writer, three readers.
        let mode = if before == 2 { Mode::Exclusive } else { Mode::Shared };
        waiters.push(Waiter::start(one.request("report").mode(mode).ttl(LONG)));
        until_waiting(&one, "report", before + 1).await;
    }
    let before = calls(&server, "publish");
    lease.release().await.expect("an answer");
    until("two grants", async || !waiters[0].is_waiting() && !waiters[1].is_waiting()).await;
    assert_eq!(calls(&server, "publish") - before, 1 + 2 * 2, "released, two bells, two granted");
    assert!(waiters[2..].iter().all(Waiter::is_waiting));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f117_resets_while_they_queue_keep_the_order() {
    let server = server().await;
    let proxy = proxy(&server).await;
    let holder = client(server.url()).await;
    let reset = || proxy.reset_all();
    keep_their_order(&holder, async || client(url_of(&proxy)).await, reset).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_longer_than_the_patience_keeps_the_place_although_connections_break() {
    let server = server().await;
    let proxy = proxy(&server).await;
    let (holder, waiting) = (client(server.url()).await, client(url_of(&proxy)).await);
    let lease = holder.mutex("report").ttl(LONG).lock().await.expect("free");
    let waiter = Waiter::start(waiting.request("report").ttl(Duration::from_secs(5)));
    until_waiting(&holder, "report", 1).await;
    let line = holder.line("report").await.expect("an answer").expect("a line");
    let (fence, patience) = (line.waiting[0].fence, line.waiting[0].remaining);
    let begun = std::time::Instant::now();
    while begun.elapsed() <= patience {
        let before = calls(&server, "evalsha");
        proxy.reset_all();
        until("a heartbeat", async || calls(&server, "evalsha") > before).await;
    }
    lease.release().await.expect("an answer");
    assert_eq!(waiter.granted().await.fence(), fence, "it lost its place");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bell_of_a_place_in_line_that_was_lost_grants_nothing() {
    let server = server().await;
    let (one, two) = (client(server.url()).await, client(server.url()).await);
    let lease = one.mutex("report").ttl(LONG).lock().await.expect("free");
    let waiter = Waiter::queue(&one, &two, "report", 0).await;
    let keys = told(&server, &["KEYS", "*order:*"]);
    let place = told(&server, &["ZRANGE", keys.trim(), "1", "1"]);
    let (fence, token, mailbox) = (&place[..20], &place[20..52], &place[52..84]);
    let fence: u64 = fence.parse().expect("a fence");
    // As if the waiter had slept through a grant and joined the line again, and heard the bell of
    // that grant only now.
    let (channel, before) = (format!("leasehold:mailbox:{mailbox}"), calls(&server, "evalsha"));
    let digest = |text: &str| told(&server, &["EVAL", "return redis.sha1hex(ARGV[1])", "0", text]);
    let former = format!("{:020}", fence - 1);
    let bell = format!("{former}{}{}", digest(token), digest(&format!("{former}{token}")));
    assert_eq!(told(&server, &["PUBLISH", &channel, &bell]), "1");
    until("the waiter to ask", async || calls(&server, "evalsha") > before).await;
    assert!(waiter.is_waiting() && lease.is_held());
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    assert_eq!(waiter.granted().await.fence(), fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bell_tells_nobody_the_token_of_the_claim_that_it_grants() {
    let server = server().await;
    let (one, two) = (client(server.url()).await, client(server.url()).await);
    let lease = one.mutex("report").ttl(LONG).lock().await.expect("free");
    let waiter = Waiter::queue(&one, &two, "report", 0).await;
    let keys = told(&server, &["KEYS", "*order:*"]);
    let place = told(&server, &["ZRANGE", keys.trim(), "1", "1"]);
    let (fence, token) = (&place[..20], &place[20..52]);
    let mut monitor = Monitor::open(&server);
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    drop(waiter.granted().await);
    let lines = monitor.read(&server);
    let published: Vec<_> = lines.iter().filter(|line| line.contains("\"PUBLISH\"")).collect();
    assert!(published.iter().any(|line| line.contains(fence)), "{lines:#?}");
    assert!(!published.iter().any(|line| line.contains(token)), "{published:#?}");
}
