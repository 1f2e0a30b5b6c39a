//! Redlock on real servers: nodes that die, forget, come back and disagree.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::claim::{Mode, Standing};
use leasehold::engine::{Engine as _, Finding, Level, Query};
use leasehold::error::{Invalid, NodeFailure, NodeReason};
use leasehold::redlock::Redlock;
use leasehold::{Client, Error, Lease, LeaseState, LostCause, Released, UnlessHeld};
use leasehold_testkit::servers::{self, Group};
use leasehold_testkit::{Peer, PeerKind, Server};
use tokio::task::JoinSet;

use crate::support::*;

/// A ttl that a client on a busy machine also renews in time.
pub(crate) const TTL: Duration = Duration::from_secs(6);

/// How long a node on probation waits, in tests that wait for it.
const SHORT_MS: u64 = 2_000;

pub(crate) async fn memory_only(count: usize) -> Group {
    servers::Redis::new().start_many(count).await.expect("servers start")
}

async fn durable(count: usize) -> Group {
    servers::Redis::new().append_only().start_many(count).await.expect("servers start")
}

pub(crate) fn url(group: &Group, options: &str) -> String {
    let address = |server: &Server| server.address().to_string();
    let hosts: Vec<String> = group.servers().iter().map(address).collect();
    format!("redlock://{}?{options}", hosts.join(","))
}

/// With ttls as long as those of the other tests.
pub(crate) fn long_url(group: &Group) -> String {
    url(group, "ttl_max_ms=600000")
}

async fn client_of(group: &Group) -> Client {
    client(long_url(group)).await
}

/// The findings of `doctor` about the vote of each node: whether it has one.
pub(crate) async fn votes(client: &Client) -> Vec<bool> {
    let findings = client.admin().examine().await.expect("an answer");
    let votes = findings.iter().filter(|finding| finding.subject == "vote");
    votes.map(|finding: &Finding| finding.level == Level::Good).collect()
}

/// Waits until all nodes but one vote. The first question to a restarted node may find a connection
/// that broke at the restart, so one look may not suffice.
#[track_caller]
fn until_one_does_not_vote(client: &Client) -> impl Future<Output = ()> + '_ {
    until("a node on probation", async || {
        let votes = votes(client).await;
        votes.len() == 3 && votes.iter().filter(|votes| !**votes).count() == 1
    })
}

/// Many claims on one name at once, each given back as soon as it is granted. Checks that all are
/// granted, one at a time, with fences that rise.
async fn contest(group: &Group, contenders: usize) {
    let last = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    let mut shared = client_of(group).await;
    for index in 0..contenders {
        // Some share a client.
        if index % 5 == 0 {
            shared = client_of(group).await;
        }
        let client = shared.clone();
        let last = Arc::clone(&last);
        tasks.spawn(async move {
            let lease = client.mutex("contest").ttl(LONG).lock().await.expect("a grant");
            let before = last.swap(lease.fence().as_u64(), Ordering::SeqCst);
            assert!(before < lease.fence().as_u64(), "{before} came before {}", lease.fence());
            tokio::task::yield_now().await;
            assert_eq!(lease.fence(), last.load(Ordering::SeqCst), "nobody came between");
            assert_eq!(lease.release().await.expect("an answer"), Released::Released);
        });
    }
    while let Some(done) = soon("the next in the contest", tasks.join_next()).await {
        done.expect("no panic");
    }
}

/// A lease on `report` whose claim counts at every node. A node that was asked late may have a vote
/// above the fence. Such a node is no help when another one loses the claim.
pub(crate) async fn counted_everywhere(group: &Group, client: &Client) -> Lease {
    counted_at(group.servers(), client).await
}

/// The same at nodes that are no group.
pub(crate) async fn counted_at(nodes: &[Server], client: &Client) -> Lease {
    loop {
        let lease = client.mutex("report").ttl(TTL).lock().await.expect("free");
        let vote =
            |server: &Server| told(server, &["HGET", "leasehold:quorum:line:lock:report", "v"]);
        until("the last node", async || nodes.iter().all(|server| !vote(server).is_empty())).await;
        let counts = |server: &Server| {
            vote(server).parse::<u64>().expect("a vote") <= lease.fence().as_u64()
        };
        if nodes.iter().all(counts) {
            return lease;
        }
        lease.release().await.expect("an answer");
    }
}

/// The keys of lines on a server, including locks.
fn leftovers(server: &Server) -> Vec<String> {
    let keys = told(server, &["KEYS", "*"]);
    let kept = |key: &&str| !key.contains(":fence:") && !key.contains(":marker:");
    keys.lines().filter(kept).map(str::to_owned).collect()
}

/// Waits until all of these nodes have carried out a release: its caller gets the answer after a
/// majority.
pub(crate) async fn until_released(servers: &[Server]) {
    let released = async || servers.iter().all(|server| leftovers(server).is_empty());
    until("the release at every node", released).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f55_minority_that_is_dead_or_silent_holds_up_nobody() {
    let group = memory_only(5).await;
    // If a client waited for the silent node, it would take longer than the test may.
    let url = url(&group, "ttl_max_ms=600000&node_timeout_ms=60000");
    let (one, two) = (early_client(&url).await, client(&url).await);
    let lease = counted_everywhere(&group, &one).await;
    let (dead, silent) = (&group.servers()[0], &group.servers()[3]);
    dead.kill().expect("it is killed");
    silent.stop_process().expect("it stops");
    until_renewed(&lease).await;
    assert_eq!(lease.state(), LeaseState::Held);
    assert!(
        soon("a refusal", two.mutex("report").try_lock())
            .await
            .unless_held()
            .expect("known")
            .is_none()
    );
    let other = soon("a grant", two.mutex("other").ttl(LONG).lock()).await.expect("free");
    assert_eq!(soon("an answer", other.release()).await.expect("known"), Released::Released);
    let waiter = Waiter::start(two.request("report").ttl(LONG));
    let fence = lease.fence();
    assert_eq!(soon("an answer", lease.release()).await.expect("known"), Released::Released);
    assert!(waiter.granted().await.fence() > fence);
    silent.continue_process().expect("it goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f56_majority_that_is_down_grants_nothing_and_each_node_is_named() {
    let group = memory_only(3).await;
    let url = url(&group, "ttl_max_ms=600000&node_timeout_ms=300");
    let (one, two) = (early_client(&url).await, plain_client(&url).await);
    let lease = one.mutex("report").ttl(Duration::from_secs(2)).lock().await.expect("free");
    group.servers()[0].kill().expect("it is killed");
    group.servers()[1].stop_process().expect("it stops");
    let refused = soon("an answer", two.mutex("other").ttl(TTL).try_lock()).await.unless_held();
    let error = refused.expect_err("no majority");
    let text = error.to_string();
    for server in group.servers() {
        assert!(text.contains(&server.address().to_string()), "{text}");
    }
    let Error::NoMajority { nodes, .. } = &error else { panic!("{error:?}") };
    let cause = |server: &Server| {
        let address = server.address().to_string();
        nodes.iter().find(|failed| failed.node == address).map(|failed| failed.reason.clone())
    };
    assert!(
        matches!(cause(&group.servers()[0]), Some(NodeReason::Unreachable { .. })),
        "{error:?}"
    );
    assert_eq!(cause(&group.servers()[1]), Some(NodeReason::Silent), "{error:?}");
    assert_eq!(cause(&group.servers()[2]), Some(NodeReason::Granted), "{error:?}");
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Unreachable);
    group.servers()[1].continue_process().expect("it goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f56_node_that_nobody_waits_for_is_not_called_silent() {
    let group = memory_only(3).await;
    let two = plain_client(&url(&group, "ttl_max_ms=600000&node_timeout_ms=60000")).await;
    // The stopped node could answer for another minute; two that are down decide before that.
    group.servers()[2].stop_process().expect("it stops");
    for server in &group.servers()[..2] {
        server.kill().expect("it is killed");
    }
    let refused = soon("an answer", two.mutex("other").ttl(TTL).try_lock()).await.unless_held();
    let error = refused.expect_err("no majority");
    let Error::NoMajority { nodes, .. } = &error else { panic!("{error:?}") };
    let stopped = group.servers()[2].address().to_string();
    let not_awaited =
        |failed: &NodeFailure| failed.node == stopped && failed.reason == NodeReason::NotAwaited;
    assert!(nodes.iter().any(not_awaited), "{error:?}");
    assert!(error.to_string().contains(&format!("{stopped}: not awaited")), "{error}");
    group.servers()[2].continue_process().expect("it goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f57_node_that_restarts_empty_takes_no_part_and_is_repaired() {
    let group = memory_only(3).await;
    let url = long_url(&group);
    let (one, two) = (early_client(&url).await, client(&url).await);
    let lease = counted_everywhere(&group, &one).await;
    let node = &group.servers()[1];
    node.restart().await.expect("it restarts");
    assert!(two.mutex("report").try_lock().await.unless_held().expect("an answer").is_none());
    until("the repair", async || !told(node, &["GET", "lock:report"]).is_empty()).await;
    assert_eq!(lease.state(), LeaseState::Held);
    // The others make a majority; this node must not vote before the longest ttl has passed.
    let other = two.mutex("other").ttl(TTL).lock().await.expect("free");
    assert_eq!(told(node, &["EXISTS", "lock:other"]), "0");
    until_one_does_not_vote(&two).await;
    assert_eq!(other.release().await.expect("an answer"), Released::Released);
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    until_released(std::slice::from_ref(node)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f58_two_of_three_that_restart_empty_grant_nothing_before_the_longest_ttl() {
    let group = memory_only(3).await;
    let url = url(&group, &format!("ttl_max_ms={SHORT_MS}"));
    let ttl = Duration::from_millis(SHORT_MS);
    let two = plain_client(&url).await;
    let before = two.mutex("report").ttl(ttl).lock().await.expect("free");
    let fence = before.fence();
    before.release().await.expect("an answer");
    for server in &group.servers()[..2] {
        server.restart().await.expect("it restarts");
    }
    let begun = std::time::Instant::now();
    // The first question to each finds a connection that broke at the restart.
    until("two on probation", async || {
        let refused =
            two.mutex("report").ttl(ttl).try_lock().await.unless_held().expect_err("no majority");
        let Error::NoMajority { nodes, .. } = &refused else { panic!("{refused:?}") };
        nodes.iter().filter(|failed| failed.reason == NodeReason::Probation).count() == 2
    })
    .await;
    let lease = soon("a grant after the longest ttl", async {
        loop {
            match two.mutex("report").ttl(ttl).try_lock().await.unless_held() {
                Ok(Some(lease)) => return lease,
                Ok(None) | Err(Error::NoMajority { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    // Sound however slow the machine is: this is a lower bound.
    assert!(begun.elapsed() >= ttl - Duration::from_millis(500), "{:?}", begun.elapsed());
    assert!(lease.fence() > fence);
    until("all to vote", async || votes(&two).await == [true; 3]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f50_node_that_restarted_empty_votes_again_after_the_longest_ttl() {
    let group = memory_only(3).await;
    let client = client(url(&group, &format!("ttl_max_ms={SHORT_MS}"))).await;
    let ttl = Duration::from_millis(SHORT_MS);
    group.servers()[2].restart().await.expect("it restarts");
    client.mutex("report").ttl(ttl).lock().await.expect("free").release().await.expect("known");
    until("all to vote", async || votes(&client).await == [true; 3]).await;
    // It caught up with the others, so it makes a majority with each of them.
    let fence = client.mutex("report").ttl(ttl).lock().await.expect("free").fence();
    group.servers()[0].kill().expect("it is killed");
    until("the name to be free", async || {
        client.line("report").await.expect("an answer").is_none()
    })
    .await;
    assert!(client.mutex("report").ttl(ttl).lock().await.expect("free").fence() > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f51_node_that_writes_once_a_second_counts_as_one_that_forgets() {
    let options = servers::Redis::new().append_only();
    let options = options.argument("--appendfsync").argument("everysec");
    let group = options.start_many(3).await.expect("servers start");
    let one = early_client(long_url(&group)).await;
    let findings = one.admin().examine().await.expect("an answer");
    let told = findings.iter().filter(|finding| finding.subject == "persistence");
    let levels: Vec<Level> = told.map(|finding| finding.level).collect();
    assert_eq!(levels, [Level::Warning; 3], "{findings:?}");
    let lease = counted_everywhere(&group, &one).await;
    group.servers()[0].restart().await.expect("it restarts");
    until_renewed(&lease).await;
    one.mutex("other").lock().await.expect("free").release().await.expect("known");
    until_one_does_not_vote(&one).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f52_nodes_that_write_everything_down_keep_leases_and_vote_at_once() {
    let group = durable(3).await;
    let url = long_url(&group);
    let (one, two) = (early_client(&url).await, client(&url).await);
    let lease = one.mutex("report").ttl(LONG).lock().await.expect("free");
    for server in group.servers() {
        server.restart().await.expect("it restarts");
    }
    assert!(two.mutex("report").try_lock().await.unless_held().expect("an answer").is_none());
    assert_eq!(lease.state(), LeaseState::Held);
    let other = two.mutex("other").ttl(LONG).lock().await.expect("it votes at once");
    assert!(other.is_held());
    let fence = lease.fence();
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    assert!(two.mutex("report").lock().await.expect("free").fence() > fence);
}

#[tokio::test]
async fn lease_that_a_majority_lost_keeps_others_out_at_the_last_node() {
    let group = durable(3).await;
    let [late, last, wiped] = group.servers() else { panic!("three nodes") };
    let url = long_url(&group);
    let engine = soon("a store", Redlock::open(&url)).await.expect("the store opens");
    late.kill().expect("it is killed");
    let lease = claim("report", Mode::Exclusive);
    held(&engine, &lease).await;
    late.launch().expect("it starts");
    late.wait_ready().await.expect("it is ready");
    told(wiped, &["FLUSHALL"]);
    // Only one node has it now, so the renewal finds it lost. Its holder has yet to read that.
    until("the loss", async || {
        let standings = engine.renew(&[renewal(&lease)]).await;
        matches!(standings.as_deref(), Ok([Ok(Standing::Out { .. })]))
    })
    .await;
    // Another exchange with each node: an order to leave would arrive before it.
    engine.inspect(&Query::name(lease.key.name.clone())).await.expect("an answer");
    assert_eq!(told(last, &["EXISTS", "lock:report"]), "1", "the next claim can win here");
    let next = plain_client(&url).await.mutex("report").ttl(TTL).try_lock().await;
    assert!(next.is_err(), "two hold at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f59_fifty_who_come_at_once_get_it_one_after_the_other() {
    contest(&memory_only(3).await, 50).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f59_split_votes_end_with_two_and_with_four_nodes() {
    for count in [2, 4] {
        contest(&memory_only(count).await, 20).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f61_flushed_scripts_are_brought_along_again() {
    let group = memory_only(3).await;
    let client = client_of(&group).await;
    let flush = || {
        for server in group.servers() {
            told(server, &["SCRIPT", "FLUSH"]);
        }
    };
    flush();
    let lease = client.mutex("report").ttl(LONG).lock().await.expect("free");
    flush();
    assert!(client.mutex("report").try_lock().await.unless_held().expect("an answer").is_none());
    flush();
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f65_lock_deleted_at_one_node_is_put_back_and_at_two_is_lost() {
    let group = memory_only(3).await;
    let one = early_client(long_url(&group)).await;
    let lease = counted_everywhere(&group, &one).await;
    let [first, second, _] = group.servers() else { panic!("three nodes") };
    told(first, &["DEL", "lock:report"]);
    until("the repair", async || !told(first, &["GET", "lock:report"]).is_empty()).await;
    assert_eq!(lease.state(), LeaseState::Held);
    // Its vote there is above the fence now, so the second loss is one too many.
    told(second, &["DEL", "lock:report"]);
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Removed);
    let next = one.mutex("report").ttl(TTL).lock().await.expect("free");
    assert!(next.fence() > lease.fence());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f65_node_that_was_flushed_is_on_probation() {
    let group = memory_only(3).await;
    let one = early_client(long_url(&group)).await;
    let lease = counted_everywhere(&group, &one).await;
    told(&group.servers()[0], &["FLUSHALL"]);
    until_renewed(&lease).await;
    one.mutex("other").lock().await.expect("free").release().await.expect("known");
    until_one_does_not_vote(&one).await;
    assert_eq!(lease.state(), LeaseState::Held);
}

/// Takes the name again and again while nodes are killed in turns; returns the fences.
async fn fences_under_fire(group: &Group, ttl: Duration, options: &str) -> Vec<u64> {
    let url = url(group, options);
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(client(&url).await);
    }
    let mut fences = Vec::new();
    for round in 0..12 {
        let server = &group.servers()[round % group.servers().len()];
        server.kill().expect("it is killed");
        for client in &clients {
            let lease: Lease = soon("a grant", async {
                loop {
                    match client.mutex("report").ttl(ttl).lock().await {
                        Ok(lease) => return lease,
                        Err(error) if error.is_transient() => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            })
            .await;
            fences.push(lease.fence().as_u64());
            // The client may learn here that a node lost the claim; then no other client had it
            // before.
            lease.release().await.expect("an answer");
        }
        server.launch().expect("it starts");
        server.wait_ready().await.expect("it is ready");
        // With two nodes without a vote no claim would be granted.
        until("all to vote", async || {
            votes(&clients[0]).await == vec![true; group.servers().len()]
        })
        .await;
    }
    fences
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_rise_while_nodes_that_keep_everything_are_killed() {
    let fences = fences_under_fire(&durable(3).await, TTL, "ttl_max_ms=600000").await;
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_rise_while_nodes_that_forget_everything_are_killed() {
    let (group, ttl) = (memory_only(3).await, Duration::from_millis(500));
    let fences = fences_under_fire(&group, ttl, "ttl_max_ms=500").await;
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn npm_redlock_and_this_one_exclude_and_wait_for_each_other() {
    let group = memory_only(3).await;
    let urls: Vec<&str> = group.servers().iter().map(Server::url).collect();
    let mut peer = Peer::spawn(PeerKind::Redlock, &urls).await.expect("a peer starts");
    let url = url(&group, &format!("ttl_max_ms=600000&prefix={}", peer.key("")));
    let client = client(&url).await;
    let long = Duration::from_secs(60);
    let lease = client.mutex("report").ttl(LONG).lock().await.expect("free");
    assert!(!peer.try_lock("report", long).await.expect("an answer"), "ours is held");
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    assert!(peer.lock("report", long, Duration::from_secs(20)).await.expect("an answer"));
    assert!(client.mutex("report").try_lock().await.unless_held().expect("an answer").is_none());
    let waiter = Waiter::start(client.request("report").ttl(LONG));
    until_waiting(&client, "report", 1).await;
    assert!(waiter.is_waiting());
    assert!(peer.release("report").await.expect("an answer"));
    let lease = waiter.granted().await;
    assert!(!peer.try_lock("report", long).await.expect("an answer"));
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    until_released(group.servers()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn value_of_any_type_at_a_minority_of_lock_keys_excludes_nobody_and_at_two_everybody() {
    let group = memory_only(3).await;
    let client = client_of(&group).await;
    told(&group.servers()[0], &["RPUSH", "lock:report", "odd"]);
    let lease = client.mutex("report").ttl(LONG).lock().await.expect("two of three are free");
    assert_eq!(lease.release().await.expect("an answer"), Released::Released);
    until_released(&group.servers()[1..]).await;
    told(&group.servers()[1], &["HSET", "lock:report", "odd", "1"]);
    assert!(client.mutex("report").try_lock().await.unless_held().expect("an answer").is_none());
    let waiter = Waiter::start(client.request("report").ttl(LONG));
    until_waiting(&client, "report", 1).await;
    told(&group.servers()[1], &["DEL", "lock:report"]);
    assert!(waiter.granted().await.is_held());
    assert_eq!(told(&group.servers()[0], &["TYPE", "lock:report"]), "list");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_and_release_of_a_free_name_are_one_call_at_each_node() {
    let group = memory_only(3).await;
    let client = client_of(&group).await;
    warm_up(&client).await;
    let calls = || group.servers().iter().map(script_calls).sum::<u64>();
    until_released(group.servers()).await;
    let before = calls();
    for _ in 0..20 {
        let lease = client.mutex("report").ttl(LONG).lock().await.expect("free");
        lease.release().await.expect("an answer");
    }
    until_released(group.servers()).await;
    let each = (calls() - before) as f64 / 20.0;
    // A vote that differs because a server was busy costs up to three more.
    assert!((6.0..=7.5).contains(&each), "{each} calls for each cycle");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ttl_above_the_longest_is_refused() {
    let group = memory_only(3).await;
    let client = client(url(&group, "")).await;
    let refused =
        client.mutex("report").ttl(Duration::from_secs(61)).try_lock().await.unless_held();
    assert!(matches!(refused, Err(Error::Invalid(Invalid::TtlAboveStore { .. }))), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_disagree_about_the_set_are_refused() {
    let group = memory_only(3).await;
    client_of(&group).await;
    let fewer = long_url(&group).replacen(&format!("{},", group.servers()[0].address()), "", 1);
    for url in [url(&group, "ttl_max_ms=700"), fewer] {
        let refused = soon("an answer", leasehold::connect(&url)).await.expect_err(&url);
        assert!(matches!(refused, Error::Config(_)), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quorum_refuses_by_name_the_calls_it_cannot_do_and_still_shows_leaders() {
    use futures_util::StreamExt as _;
    let group = memory_only(3).await;
    let (one, two) = (client_of(&group).await, client_of(&group).await);
    let unsupported = |error: &Error| matches!(error, Error::Unsupported { .. });
    let ran = one.once("job", TTL).run(async |_| Ok::<(), String>(())).await;
    assert!(ran.as_ref().is_err_and(unsupported), "{ran:?}");
    let read = one.rwlock("catalogue").read().await;
    assert!(read.as_ref().is_err_and(unsupported), "{read:?}");
    let permit = one.semaphore("uploads", 2).acquire().await;
    assert!(permit.as_ref().is_err_and(unsupported), "{permit:?}");
    let resized = one.admin().resize("uploads", 2).await;
    assert!(resized.as_ref().is_err_and(unsupported), "{resized:?}");
    assert!(one.line("job").await.expect("an answer").is_none(), "nothing was left");

    let mut leaders = two.election("office").observe().await.expect("a stream");
    assert!(leaders.next().await.expect("endless").expect("read").is_none());
    let leadership = one.election("office").ttl(TTL).campaign("here").await.expect("elected");
    let seen = soon("the leader", leaders.next()).await.expect("endless").expect("read");
    assert_eq!(seen.map(|leader| leader.term), Some(leadership.term()));
    let told = leadership.proclaim("there").await;
    assert!(told.as_ref().is_err_and(unsupported), "{told:?}");
    assert!(leadership.is_held(), "a refusal loses nothing");
    leadership.resign().await.expect("an answer");
    assert!(soon("nobody", leaders.next()).await.expect("endless").expect("read").is_none());
}
