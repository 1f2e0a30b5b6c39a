//! Members that die, stop and come back while clients hold and wait for locks.

use std::time::Duration;

use leasehold::{Client, LeaseState, LostCause, Released, UnlessHeld};
use leasehold_testkit::{Direction, Group, Proxy, Server, Zookeeper};

use super::support::*;

/// Long enough for an election on a busy machine, short enough to see several renewals.
const TTL: Duration = Duration::from_secs(12);

/// A held lease and a claim that waits for it, by clients that know all members.
async fn held_and_waited_for(group: &Group, name: &str) -> (Client, leasehold::Lease, Waiter) {
    let [one, two] = [client(group.url()).await, client(group.url()).await];
    let lease = one.mutex(name).ttl(TTL).lock().await.expect("it is free");
    let waiter = Waiter::start(two.request(name).ttl(TTL));
    until_waiting(&one, name, 1).await;
    (one, lease, waiter)
}

/// Checks that a lease is renewed, and never lost meanwhile.
async fn renewed(lease: &leasehold::Lease, waiter: &Waiter) {
    let before = lease.deadline();
    until("a renewal", async || {
        assert_ne!(lease.state(), LeaseState::Lost, "the lease was lost");
        lease.deadline() > before && lease.state() == LeaseState::Held
    })
    .await;
    assert!(waiter.is_waiting(), "two hold at once");
}

async fn handed_over(lease: leasehold::Lease, waiter: &mut Waiter) {
    let fence = lease.fence();
    assert_eq!(soon("an answer", lease.release()).await.expect("one"), Released::Released);
    let next = waiter.granted().await;
    assert!(next.fence() > fence);
    assert_eq!(soon("an answer", next.release()).await.expect("one"), Released::Released);
}

async fn survives(break_it: impl AsyncFn(&Group) -> usize) -> (Group, usize) {
    let group = ensemble().await;
    let (client, lease, mut waiter) = held_and_waited_for(&group, "kept").await;
    let broken = break_it(&group).await;
    renewed(&lease, &waiter).await;
    handed_over(lease, &mut waiter).await;
    let alive = others(&group, broken).next().expect("two are left");
    leaves_nothing(alive, [client]).await;
    (group, broken)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f92_leader_killed_while_a_lock_is_held_and_waited_for_loses_nothing() {
    survives(async |group| {
        let leader = leader(group).await;
        group.servers()[leader].kill().expect("it runs");
        leader
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f85_any_member_killed_while_a_lock_is_held_and_waited_for_loses_nothing() {
    let group = ensemble().await;
    let (client, lease, mut waiter) = held_and_waited_for(&group, "kept").await;
    for server in group.servers() {
        server.kill().expect("it runs");
        renewed(&lease, &waiter).await;
        server.restart().await.expect("it starts again");
    }
    handed_over(lease, &mut waiter).await;
    for server in group.servers() {
        leaves_nothing(server, [client.clone()]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f92_stopped_leader_loses_nothing_and_does_no_harm_when_it_goes_on() {
    let (group, stopped) = survives(async |group| {
        let leader = leader(group).await;
        group.servers()[leader].stop_process().expect("it runs");
        leader
    })
    .await;
    let (client, lease, mut waiter) = {
        let rest: Vec<String> =
            others(&group, stopped).map(|server| server.address().to_string()).collect();
        let url = format!("zk://{}", rest.join(","));
        let [one, two] = [client(&url).await, client(&url).await];
        let lease = one.mutex("after").ttl(TTL).lock().await.expect("it is free");
        let waiter = Waiter::start(two.request("after").ttl(TTL));
        until_waiting(&one, "after", 1).await;
        (one, lease, waiter)
    };
    group.servers()[stopped].continue_process().expect("it is stopped");
    renewed(&lease, &waiter).await;
    handed_over(lease, &mut waiter).await;
    leaves_nothing(&group.servers()[stopped], [client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f92_leases_survive_the_restart_of_the_whole_ensemble() {
    let group = ensemble().await;
    let (client, lease, mut waiter) = held_and_waited_for(&group, "kept").await;
    group.restart().await.expect("it starts again");
    renewed(&lease, &waiter).await;
    handed_over(lease, &mut waiter).await;
    leaves_nothing(&group.servers()[0], [client]).await;
}

fn others(group: &Group, without: usize) -> impl Iterator<Item = &Server> {
    let all = group.servers().iter().enumerate();
    all.filter(move |(index, _)| *index != without).map(|(_, server)| server)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f91_clients_of_a_member_that_is_cut_off_lose_and_others_go_on() {
    let group = ensemble().await;
    let alone = group.servers()[0].url().to_owned();
    let rest: Vec<String> = others(&group, 0).map(|server| server.address().to_string()).collect();
    let [one, two] = [client(&alone).await, client(&format!("zk://{}", rest.join(","))).await];
    let ttl = Duration::from_secs(3);
    let lease = one.mutex("cut").ttl(ttl).lock().await.expect("it is free");
    let mut waiter = Waiter::start(two.request("cut").ttl(TTL));
    until_waiting(&two, "cut", 1).await;
    group.servers()[0].stop_process().expect("it runs");
    let next = waiter.granted().await;
    assert_eq!(lease.state(), LeaseState::Lost, "two hold at once");
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Unreachable);
    assert!(next.fence() > lease.fence());
    group.servers()[0].continue_process().expect("it is stopped");
    assert_ne!(soon("an answer", lease.release()).await.ok(), Some(Released::Released));
    assert!(next.is_held());
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
    leaves_nothing(&group.servers()[0], [one, two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f91_without_a_majority_leases_are_lost_in_time_and_nothing_is_granted() {
    let group = ensemble().await;
    let client = client(group.url()).await;
    let ttl = Duration::from_secs(3);
    let lease = client.mutex("majority").ttl(ttl).lock().await.expect("it is free");
    for server in &group.servers()[1..] {
        server.stop_process().expect("it runs");
    }
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Unreachable);
    let refused = soon("an answer", client.mutex("other").try_lock()).await.unless_held();
    assert!(matches!(&refused, Err(error) if error.is_transient()), "{refused:?}");
    for server in &group.servers()[1..] {
        server.continue_process().expect("it is stopped");
    }
    let lease = soon("the name to be free", client.mutex("majority").lock()).await;
    lease.expect("a lease").release().await.expect("an answer");
    leaves_nothing(&group.servers()[0], [client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f91_server_that_is_cut_off_but_answers_keeps_no_lease() {
    // A server goes on for this many ticks before it notices that the leader is silent.
    let group = Zookeeper::new().setting("syncLimit", "60").start_ensemble().await;
    let group = group.expect("an ensemble");
    let leader = leader(&group).await;
    let alone = (leader + 1) % group.servers().len();
    let server = &group.servers()[alone];
    let client = client(server.url()).await;
    let lease = client.mutex("alone").ttl(Duration::from_secs(2)).lock().await.expect("free");
    for server in others(&group, alone) {
        server.stop_process().expect("it runs");
    }
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Unreachable);
    let text = says(server.address(), "srvr").expect("it answers");
    assert!(text.contains("Mode: follower"), "it noticed before the client did: {text}");
    for server in others(&group, alone) {
        server.continue_process().expect("it is stopped");
    }
    leaves_nothing(server, [client]).await;
}

/// Puts a proxy before each connection between one server and the others, in both directions. Each
/// server reads its own file of addresses.
pub(crate) async fn ways(group: &Group, alone: usize) -> Vec<Proxy> {
    let file = |index: usize| group.servers()[index].folder().join("zoo.cfg");
    let mut files: Vec<String> = (0..group.servers().len())
        .map(|index| std::fs::read_to_string(file(index)).expect("its settings"))
        .collect();
    let members: Vec<String> =
        files[0].lines().filter(|line| line.starts_with("server.")).map(str::to_owned).collect();
    assert_eq!(members.len(), files.len());
    let mut proxies = Vec::new();
    for (index, member) in members.iter().enumerate() {
        let mut instead = member.split(':').next().expect("who and where").to_owned();
        for port in member.split(':').skip(1) {
            let target = format!("127.0.0.1:{port}").parse().expect("an address");
            let proxy = Proxy::start(target).await.expect("a proxy");
            instead.push_str(&format!(":{}", proxy.port()));
            proxies.push(proxy);
        }
        for (reader, text) in files.iter_mut().enumerate() {
            if reader != index && (reader == alone || index == alone) {
                *text = text.replace(member.as_str(), &instead);
            }
        }
    }
    for (index, text) in files.iter().enumerate() {
        std::fs::write(file(index), text).expect("its settings");
    }
    group.restart().await.expect("it starts again");
    proxies
}

/// Makes a member the leader: restarts each other leader.
pub(crate) async fn lead(group: &Group, wanted: usize) {
    soon("it to lead", async {
        loop {
            match leader(group).await {
                leads if leads == wanted => return,
                other => group.servers()[other].restart().await.expect("it starts again"),
            }
        }
    })
    .await;
}

/// The url of all members but one.
fn url_of_others(group: &Group, without: usize) -> String {
    let rest = others(group, without).map(|server| server.address().to_string());
    format!("zk://{}", rest.collect::<Vec<_>>().join(","))
}

fn leads(server: &Server) -> bool {
    says(server.address(), "srvr").is_some_and(|text| text.contains("Mode: leader"))
}

/// The leader believes in itself for longer than the others do, so for a while there are two. The
/// old one answers every request that needs no majority.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f91_leader_that_is_cut_off_loses_its_clients_before_the_others_go_on() {
    let group = ensemble().await;
    // Among equals the members elect the last one.
    let alone = group.servers().len() - 1;
    let server = &group.servers()[alone];
    let settings = server.folder().join("zoo.cfg");
    let text = std::fs::read_to_string(&settings).expect("its settings");
    std::fs::write(&settings, text + "syncLimit=1200\n").expect("its settings");
    let proxies = ways(&group, alone).await;
    lead(&group, alone).await;
    let [few, many] = [client(server.url()).await, client(&url_of_others(&group, alone)).await];
    let lease = few.mutex("parted").ttl(Duration::from_secs(8)).lock().await.expect("free");
    let mut waiter = Waiter::start(many.request("parted").ttl(TTL));
    until_waiting(&many, "parted", 1).await;
    let before = lease.deadline();
    until("a renewal", async || lease.deadline() > before).await;
    for proxy in &proxies {
        proxy.block(Direction::Both);
    }
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Unreachable);
    assert!(waiter.is_waiting(), "two held at once");
    let next = waiter.granted().await;
    assert!(leads(server), "it noticed that it is alone");
    assert!(others(&group, alone).any(leads), "the others have a leader");
    assert!(next.fence() > lease.fence());
    for proxy in &proxies {
        proxy.pass().await.expect("it passes");
    }
    let other = soon("the way back", few.mutex("other").lock()).await.expect("a lease");
    assert_ne!(soon("an answer", lease.release()).await.ok(), Some(Released::Released));
    assert!(next.is_held());
    assert_eq!(other.release().await.expect("an answer"), Released::Released);
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
    leaves_nothing(server, [few, many]).await;
}

/// The next grant shows that the stop was long enough: only the end of the session allows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f92_leader_stopped_for_longer_than_a_session_loses_only_whose_way_it_was() {
    let group = ensemble().await;
    let stopped = leader(&group).await;
    let server = &group.servers()[stopped];
    let rest = url_of_others(&group, stopped);
    let [only, all, two] = [server.url(), group.url(), &rest];
    let [only, all, two] = [client(only).await, client(all).await, client(two).await];
    let lost = only.mutex("lost").ttl(Duration::from_secs(3)).lock().await.expect("free");
    let kept = all.mutex("kept").ttl(TTL).lock().await.expect("free");
    let mut follows = Waiter::start(two.request("lost").ttl(TTL));
    let mut waits = Waiter::start(two.request("kept").ttl(TTL));
    until_waiting(&two, "lost", 1).await;
    until_waiting(&two, "kept", 1).await;
    server.stop_process().expect("it runs");
    assert_eq!(soon("the loss", lost.lost()).await, LostCause::Unreachable);
    assert!(follows.is_waiting(), "two held at once");
    let next = follows.granted().await;
    assert!(next.fence() > lost.fence());
    renewed(&kept, &waits).await;
    server.continue_process().expect("it is stopped");
    // The old leader's knowledge from before the stop does no harm.
    let other = soon("the way back", only.mutex("other").lock()).await.expect("a lease");
    assert_ne!(soon("an answer", lost.release()).await.ok(), Some(Released::Released));
    assert!(next.is_held() && other.is_held());
    renewed(&kept, &waits).await;
    handed_over(kept, &mut waits).await;
    for lease in [next, other] {
        assert_eq!(soon("an answer", lease.release()).await.expect("one"), Released::Released);
    }
    leaves_nothing(server, [only, all, two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f91_partition_loses_on_the_side_of_the_few_before_the_others_go_on() {
    let group = ensemble().await;
    let alone = (leader(&group).await + 1) % group.servers().len();
    let proxies = ways(&group, alone).await;
    let server = &group.servers()[alone];
    let rest = others(&group, alone).map(|server| server.address().to_string());
    let rest = format!("zk://{}", rest.collect::<Vec<_>>().join(","));
    let [few, many] = [client(server.url()).await, client(&rest).await];
    let lease = few.mutex("parted").ttl(Duration::from_secs(3)).lock().await.expect("free");
    let mut waiter = Waiter::start(many.request("parted").ttl(TTL));
    until_waiting(&many, "parted", 1).await;
    for proxy in &proxies {
        proxy.block(Direction::Both);
    }
    let next = waiter.granted().await;
    assert_eq!(lease.state(), LeaseState::Lost, "two hold at once");
    assert_eq!(soon("the loss", lease.lost()).await, LostCause::Unreachable);
    assert!(next.fence() > lease.fence());
    assert!(says(server.address(), "ruok").is_some(), "it runs on all the time");
    let refused = soon("an answer", few.mutex("other").try_lock()).await.unless_held();
    assert!(matches!(&refused, Err(error) if error.is_transient()), "{refused:?}");
    for proxy in &proxies {
        proxy.pass().await.expect("it passes");
    }
    let other = soon("the way back", few.mutex("other").lock()).await.expect("a lease");
    assert!(next.is_held());
    assert_eq!(other.release().await.expect("an answer"), Released::Released);
    assert_eq!(next.release().await.expect("an answer"), Released::Released);
    leaves_nothing(server, [few, many]).await;
}
