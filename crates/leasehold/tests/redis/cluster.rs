//! A Cluster: names of every shape, slots that move while they are used, and its password.

use std::time::Duration;

use leasehold::claim::{Note, Standing};
use leasehold::engine::{Administer, Amend, Convert, Engine, Query, Resize};
use leasehold::error::Config;
use leasehold::redis::Redis;
use leasehold::{Error, Holder, LeaseState, LostCause, Mode, Released, Result, UnlessHeld};
use leasehold_testkit::{AfterLoss, Group, Proxy, Server, servers};

use crate::support::*;

async fn cluster() -> Group {
    servers::Redis::new().start_cluster().await.expect("a cluster starts")
}

fn id(server: &Server) -> String {
    told(server, &["CLUSTER", "MYID"])
}

/// The server that has a key's slot, and the slot.
fn place<'a>(group: &'a Group, key: &str) -> (&'a Server, String) {
    let slot = told(&group.servers()[0], &["CLUSTER", "KEYSLOT", key]);
    let own = group.servers().iter().find(|server| server.redis(&["TYPE", key]).is_ok());
    (own.expect("one of them has the slot"), slot)
}

fn other<'a>(group: &'a Group, than: &Server) -> &'a Server {
    let another = group.servers().iter().find(|server| server.port() != than.port());
    another.expect("there are three")
}

/// Lets a slot begin to move. None of its keys moves yet.
fn begin_move(from: &Server, to: &Server, slot: &str) {
    told(to, &["CLUSTER", "SETSLOT", slot, "IMPORTING", &id(from)]);
    told(from, &["CLUSTER", "SETSLOT", slot, "MIGRATING", &id(to)]);
}

/// The keys of a slot, and their values.
fn contents(server: &Server, slot: &str) -> Vec<(String, String)> {
    let keys = told(server, &["CLUSTER", "GETKEYSINSLOT", slot, "100"]);
    let mut contents: Vec<_> =
        keys.lines().map(|key| (key.to_owned(), content(server, key))).collect();
    contents.sort();
    contents
}

fn content(server: &Server, key: &str) -> String {
    match told(server, &["TYPE", key]).as_str() {
        "hash" => told(server, &["HGETALL", key]),
        "zset" => told(server, &["ZRANGE", key, "0", "-1", "WITHSCORES"]),
        _ => told(server, &["GET", key]),
    }
}

/// The answer to a renewal of one claim.
fn answer_of_one(answers: Result<Vec<Result<Standing>>>) -> Result<Standing> {
    answers?.remove(0)
}

/// Moves the keys of a slot, and runs `half_way` when half of them have moved.
async fn migrate(group: &Group, from: &Server, slot: &str, half_way: impl AsyncFnOnce()) {
    let to = other(group, from);
    begin_move(from, to, slot);
    let port = to.port().to_string();
    let mut half_way = Some(half_way);
    loop {
        let keys = told(from, &["CLUSTER", "GETKEYSINSLOT", slot, "1"]);
        let Some(key) = keys.lines().next() else { break };
        // A key that expires or is deleted at this moment is no failure.
        told(from, &["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        if let Some(half_way) = half_way.take() {
            half_way().await;
        }
    }
    for server in [to, from] {
        told(server, &["CLUSTER", "SETSLOT", slot, "NODE", &id(to)]);
    }
}

/// Proxies before the servers of a Cluster, in the order of the servers. The servers announce the
/// proxies' addresses.
async fn announced_proxies(group: &Group) -> Vec<Proxy> {
    let mut proxies = Vec::new();
    for server in group.servers() {
        let proxy = proxy(server).await;
        told(server, &["CONFIG", "SET", "cluster-announce-port", &proxy.port().to_string()]);
        proxies.push(proxy);
    }
    until("the addresses at every server", async || {
        group.servers().iter().all(|server| {
            let slots = told(server, &["CLUSTER", "SLOTS"]);
            let announced = |proxy: &Proxy| {
                let port = proxy.port().to_string();
                slots.lines().any(|line| line == port)
            };
            proxies.iter().all(announced)
        })
    })
    .await;
    proxies
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f24_lost_release_answer_of_a_cluster_is_no_loss() {
    let group = cluster().await;
    let proxies = announced_proxies(&group).await;
    let hosts: Vec<String> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
    let one = client(format!("redis+cluster://{}", hosts.join(","))).await;
    let mutex = one.mutex("report").ttl(LONG);
    // The server knows the scripts after this.
    mutex.lock().await.expect("free").release().await.expect("an answer");
    let lease = mutex.lock().await.expect("free");
    let (server, _slot) = place(&group, "lock:report");
    let index = group.servers().iter().position(|other| other.port() == server.port());
    let link = &proxies[index.expect("one of them")];
    link.lose_reply_to(*b"EVALSHA", AfterLoss::Reset);
    let released = soon("an answer", lease.release()).await.expect("an answer");
    // The first release took effect, so the second finds no claim.
    assert_eq!((released, link.traffic().replies_lost), (Released::Released, 1));
    assert!(one.mutex("report").try_lock().await.unless_held().expect("an answer").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f67_slot_moves_while_its_lock_is_held_and_waited_for() {
    let group = cluster().await;
    let (one, two) = (early_client(group.url()).await, client(group.url()).await);
    let request = one.request("report").ttl(Duration::from_secs(8));
    let lease = request.acquire().await.expect("free");
    let waiter = Waiter::queue(&two, &two, "report", 0).await;
    let (from, slot) = place(&group, "lock:report");
    migrate(&group, from, &slot, async || {
        // With half of the keys here and half there no verb works, and nothing is lost.
        assert!(lease.is_held() && waiter.is_waiting());
    })
    .await;
    assert_eq!(told(from, &["CLUSTER", "COUNTKEYSINSLOT", &slot]), "0");
    until_renewed(&lease).await;
    until_renewed(&lease).await;
    assert_eq!(lease.state(), LeaseState::Held);
    assert!(waiter.is_waiting());
    let line = two.line("report").await.expect("an answer").expect("it is held");
    assert_eq!((line.held[0].fence, line.waiting.len()), (lease.fence(), 1));
    let fence = lease.fence();
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    let next = waiter.granted().await;
    assert!(next.fence() > fence, "its counter moved with it");
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
    assert!(one.mutex("report").try_lock().await.unless_held().expect("an answer").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f67_claim_in_the_middle_of_a_move_is_answered_after_it() {
    let group = cluster().await;
    let one = client(group.url()).await;
    let lease = one.mutex("report").ttl(LONG).lock().await.expect("free");
    let (from, slot) = place(&group, "lock:report");
    let mut asked = None;
    migrate(&group, from, &slot, async || {
        asked = Some(Waiter::start(one.request("report").ttl(LONG)));
        tokio::time::sleep(Duration::from_millis(50)).await;
    })
    .await;
    let fence = lease.fence();
    lease.release().await.expect("an answer");
    assert!(asked.expect("it was asked").granted().await.fence() > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f67_last_claim_that_leaves_a_line_before_its_keys_move_leaves_nothing_broken() {
    let group = cluster().await;
    let (one, two) = (client(group.url()).await, client(group.url()).await);
    let first = one.mutex("report").ttl(LONG).lock().await.expect("free");
    let waiter = Waiter::queue(&two, &two, "report", 0).await;
    first.release().await.expect("an answer");
    // No claim is behind it, and the name has all keys of a line.
    let last = waiter.granted().await;
    let fence = last.fence();
    let (from, slot) = place(&group, "lock:report");
    begin_move(from, other(&group, from), &slot);
    let leaving = tokio::spawn(last.release());
    // The server answers the release at once, or after the move. Only an answer before the move
    // can come from a script that was stopped in the middle.
    tokio::time::sleep(Duration::from_millis(300)).await;
    migrate(&group, from, &slot, async || {}).await;
    let left = soon("an answer", leaving).await.expect("no panic");
    let next = soon("a grant", one.mutex("report").ttl(LONG).lock()).await;
    assert!(next.expect("the name is free").fence() > fence);
    assert!(matches!(left, Ok(Released::Released)), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f67_server_of_a_moving_slot_begins_no_script_about_a_line() {
    let group = cluster().await;
    let engine = engine(format!("{}?timeout_ms=400", group.url())).await;
    let permits = claim("report", Mode::Permits { take: 1, of: 2 });
    held(&engine, &permits).await;
    let eviction = eviction(&engine, &permits.key.name).await.expect("an answer");
    let (from, slot) = place(&group, "lock:report");
    begin_move(from, other(&group, from), &slot);
    let before = contents(from, &slot);
    let name = || permits.key.name.clone();
    let note = Note::new("later").expect("a note");
    let resize = Resize { name: name(), of: 3, by: Holder::fresh() };
    let next = claim("report", Mode::Permits { take: 1, of: 2 });
    let query = Query::name(name());
    let answers = [
        ("claim", engine.claim(&next).await.err()),
        ("renew", answer_of_one(engine.renew(&[renewal(&permits)]).await).err()),
        ("release", engine.release(std::slice::from_ref(&permits.key)).await.err()),
        ("amend", engine.set_note(&permits.key, &note).await.err()),
        ("resize", engine.resize(&resize).await.err()),
        ("evict", engine.evict(&eviction).await.err()),
        ("inspect", engine.inspect(&query).await.err()),
    ];
    for (verb, error) in answers {
        assert!(error.as_ref().is_some_and(Error::is_transient), "{verb}: {error:?}");
    }
    assert_eq!(contents(from, &slot), before);
    migrate(&group, from, &slot, async || {}).await;
    let kept = answer_of_one(engine.renew(&[renewal(&permits)]).await);
    assert!(matches!(kept, Ok(Standing::Held { .. })), "{kept:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f67_names_with_braces_in_any_arrangement_keep_to_one_slot() {
    let group = cluster().await;
    let engine = engine(group.url()).await;
    let other = self::engine(group.url()).await;
    let names = [
        "plain", "{a}", "{}", "}{", "{{x}}", "a{b", "a}b", "{}{c}", "x{y}z{w}", "}", "{", "{a}b",
        "{{}}", "}}{{", "a{}b{c}", "{a", "a}", "{ }", "{\n}", "{é}",
    ];
    for name in names {
        let (one, two) = (claim(name, Mode::Exclusive), claim(name, Mode::Exclusive));
        held(&engine, &one).await;
        queued(&other, &two).await;
        let answers = engine.renew(&[renewal(&one), renewal(&two)]).await.expect("an answer");
        assert!(matches!(answers[0], Ok(Standing::Held { .. })), "{name}: {answers:?}");
        assert!(matches!(answers[1], Ok(Standing::Queued { .. })), "{name}: {answers:?}");
        let query = Query::name(one.key.name.clone());
        assert_eq!(other.inspect(&query).await.expect("an answer").lines.len(), 1, "{name}");
        engine.release(&[one.key]).await.expect("an answer");
        let wake = soon("a bell", other.wait(&two.key)).await.expect("an answer");
        assert!(matches!(wake, leasehold::engine::Wake::Holds { .. }), "{name}: {wake:?}");
        other.release(&[two.key]).await.expect("an answer");
        let shared = [claim(name, Mode::Shared), claim(name, Mode::Shared)];
        for claim in &shared {
            held(&engine, claim).await;
        }
        let page = engine.inspect(&Query::all()).await.expect("an answer");
        assert_eq!(page.lines.len(), 1, "{name}");
        assert_eq!(page.lines[0].name.as_str(), name);
        engine.release(&shared.map(|claim| claim.key)).await.expect("an answer");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_asks_for_its_password_at_every_node() {
    let options = servers::Redis::new().password("p@ss/1");
    let group = options.start_cluster().await.expect("a cluster starts");
    let (one, two) = (client(group.url()).await, client(group.url()).await);
    for number in 0..12 {
        let name = format!("name {number}");
        let lease = one.mutex(&name).ttl(LONG).lock().await.expect("free");
        let waiter = Waiter::queue(&two, &two, &name, 0).await;
        lease.release().await.expect("an answer");
        waiter.granted().await.release().await.expect("an answer");
    }
    one.admin().examine().await.expect("doctor gets through");
    let wrong = group.url().replace("p%40ss%2F1", "wrong-one");
    assert_ne!(wrong, group.url());
    for url in [wrong.clone(), wrong.replace(":wrong-one@", "")] {
        let error = soon("a refusal", Redis::open(&url)).await.expect_err("a wrong password");
        assert!(matches!(error, Error::Config(Config::Denied { .. })), "{error:?}");
        assert!(!format!("{error:?}").contains("wrong-one"), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_of_a_cluster_behind_a_plain_url_is_refused_with_advice() {
    let group = cluster().await;
    let mut refused = 0;
    for server in group.servers() {
        match soon("an answer", Redis::open(server.url())).await {
            Err(error) => {
                assert!(matches!(error, Error::Store { transient: false, .. }), "{error:?}");
                assert!(error.to_string().contains("redis+cluster"), "{error}");
                refused += 1;
            }
            // One of them has the slot of the store's id; the other nodes then refuse their names.
            Ok(engine) => {
                let mut answers = Vec::new();
                for number in 0..40 {
                    answers.push(engine.claim(&claim(&number.to_string(), Mode::Exclusive)).await);
                }
                let error = answers.into_iter().find_map(Result::err).expect("a refusal");
                assert!(error.to_string().contains("redis+cluster"), "{error}");
            }
        }
    }
    assert!(refused >= 2, "{refused}");
}

/// A name whose lock this node keeps.
fn name_at(group: &Group, node: &Server) -> String {
    let mut names = (0..).map(|number| format!("name {number}"));
    let is_there = |name: &String| place(group, &format!("lock:{name}")).0.port() == node.port();
    names.find(is_there).expect("every node has some")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f66_node_that_stalls_is_an_error_in_time_and_loses_the_lease_by_the_local_clock() {
    let group = cluster().await;
    let url = format!("{}?connect_timeout_ms=500&timeout_ms=500", group.url());
    let one = plain_client(&url).await;
    let (stalled, healthy) = (&group.servers()[2], &group.servers()[0]);
    let (there, here) = (name_at(&group, stalled), name_at(&group, healthy));
    let lease = one.mutex(&there).ttl(Duration::from_secs(2)).lock().await.expect("free");
    stalled.stop_process().expect("it stops");
    let error = soon("an answer", one.mutex(&there).try_lock())
        .await
        .unless_held()
        .expect_err("nobody answers");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Unreachable);
    stalled.continue_process().expect("it goes on");
    for name in [&there, &here] {
        until("an answer", async || one.mutex(name).try_lock().await.unless_held().is_ok()).await;
    }
    let next = soon("a grant", one.mutex(&there).lock()).await.expect("a grant");
    assert!(next.fence() > lease.fence());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_node_of_a_cluster_holds_up_only_its_own_names() {
    let group = cluster().await;
    for server in group.servers() {
        told(server, &["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let one = early_client(group.url()).await;
    let mut leases = Vec::new();
    for number in 0..12 {
        let mutex = one.mutex(format!("name {number}")).ttl(Duration::from_secs(4));
        leases.push(mutex.lock().await.expect("free"));
    }
    for lease in &leases {
        until_renewed(lease).await;
    }
    let (silent, _slot) = place(&group, "lock:name 0");
    let is_there = |lease: &leasehold::Lease| {
        let key = format!("lock:{}", lease.name());
        silent.redis(&["TYPE", &key]).is_ok()
    };
    let (gone, kept): (Vec<_>, Vec<_>) = leases.into_iter().partition(is_there);
    assert!(!kept.is_empty(), "all names are at one node");
    silent.stop_process().expect("it stops");
    for lease in &gone {
        assert_eq!(soon("the loss", lease.lost()).await, LostCause::Unreachable);
    }
    for lease in &kept {
        assert_eq!(lease.state(), LeaseState::Held, "{}", lease.name());
        until_renewed(lease).await;
    }
    for lease in kept {
        let name = lease.name().to_string();
        assert_eq!(soon("an answer", lease.release()).await.expect("one"), Released::Released);
        let again = one.mutex(&name).ttl(LONG);
        assert!(
            soon("an answer", again.try_lock()).await.unless_held().expect("one").is_some(),
            "{name}"
        );
    }
}
