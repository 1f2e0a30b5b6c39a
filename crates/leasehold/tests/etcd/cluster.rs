//! Members that die, stop and come back while clients hold and wait for locks.

use std::time::Duration;

use leasehold::{Client, LeaseState, LostCause, Released, UnlessHeld};
use leasehold_testkit::{Group, Server};

use super::support::*;

/// Long enough for an election on a busy machine, short enough to see several renewals.
const TTL: Duration = Duration::from_secs(12);

/// A held lease and a claim that waits for it, by clients that know all members.
async fn held_and_waited_for(group: &Group, name: &str) -> ([Client; 2], leasehold::Lease, Waiter) {
    let [one, two] = [client(group.url()).await, client(group.url()).await];
    let lease = one.mutex(name).ttl(TTL).lock().await.expect("it is free");
    let waiter = Waiter::start(two.request(name).ttl(TTL));
    until_waiting(&one, name, 1).await;
    ([one, two], lease, waiter)
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
    let group = cluster().await;
    let (clients, lease, mut waiter) = held_and_waited_for(&group, "kept").await;
    let broken = break_it(&group).await;
    renewed(&lease, &waiter).await;
    handed_over(lease, &mut waiter).await;
    let well = others(&group, broken).next().expect("another member");
    nothing_is_left(well, &clients).await;
    (group, broken)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f92_leader_killed_while_a_lock_is_held_and_waited_for_loses_nothing() {
    survives(async |group| {
        let leader = leader(group);
        group.servers()[leader].kill().expect("it runs");
        leader
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f85_any_member_killed_while_a_lock_is_held_and_waited_for_loses_nothing() {
    let group = cluster().await;
    let (clients, lease, mut waiter) = held_and_waited_for(&group, "kept").await;
    for server in group.servers() {
        server.kill().expect("it runs");
        renewed(&lease, &waiter).await;
        server.restart().await.expect("it starts again");
    }
    handed_over(lease, &mut waiter).await;
    nothing_is_left(&group.servers()[0], &clients).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f92_stopped_leader_loses_nothing_and_does_no_harm_when_it_goes_on() {
    let (group, stopped) = survives(async |group| {
        let leader = leader(group);
        group.servers()[leader].stop_process().expect("it runs");
        leader
    })
    .await;
    let (clients, lease, mut waiter) = {
        let rest: Vec<String> = others(&group, stopped).map(endpoint).collect();
        let url = format!("etcd://{}", rest.join(","));
        let [one, two] = [client(&url).await, client(&url).await];
        let lease = one.mutex("after").ttl(TTL).lock().await.expect("it is free");
        let waiter = Waiter::start(two.request("after").ttl(TTL));
        until_waiting(&one, "after", 1).await;
        ([one, two], lease, waiter)
    };
    group.servers()[stopped].continue_process().expect("it is stopped");
    renewed(&lease, &waiter).await;
    handed_over(lease, &mut waiter).await;
    nothing_is_left(&group.servers()[stopped], &clients).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f92_leases_survive_the_restart_of_the_whole_cluster() {
    let group = cluster().await;
    let (clients, lease, mut waiter) = held_and_waited_for(&group, "kept").await;
    group.restart().await.expect("it starts again");
    renewed(&lease, &waiter).await;
    handed_over(lease, &mut waiter).await;
    nothing_is_left(&group.servers()[0], &clients).await;
}

/// A leader that was stopped for longer than a ttl does not know yet that it was replaced. It may
/// believe that the leases it knew have ended. Servers before 3.4.31 and 3.5.13 then let it end
/// them. So a renewed lease may be lost here, and its holder learns of that at the next renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f93_leader_that_slept_for_longer_than_a_ttl_ends_no_lease_without_a_word() {
    let ttl = Duration::from_secs(8);
    let group = cluster().await;
    let [one, two] = [client(group.url()).await, client(group.url()).await];
    let lease = one.mutex("slept").ttl(ttl).lock().await.expect("it is free");
    let mut waiter = Waiter::start(two.request("slept").ttl(TTL));
    until_waiting(&two, "slept", 1).await;
    let (leader, begun) = (leader(&group), lease.deadline());
    group.servers()[leader].stop_process().expect("it runs");
    until("renewals by another leader", async || {
        assert_ne!(lease.state(), LeaseState::Lost, "the lease was lost");
        lease.deadline().since(begun) > ttl
    })
    .await;
    assert!(waiter.is_waiting(), "two hold at once");
    group.servers()[leader].continue_process().expect("it is stopped");
    let (awake, fence) = (lease.deadline(), lease.fence());
    until("two more renewals, or the loss", async || {
        lease.state() == LeaseState::Lost || lease.deadline().since(awake) > ttl
    })
    .await;
    match lease.state() {
        LeaseState::Lost => {
            let cause = soon("the loss", lease.lost()).await;
            assert!(!matches!(cause, LostCause::Unreachable), "{cause:?}");
            assert!(waiter.granted().await.fence() > fence);
        }
        _ => {
            assert!(waiter.is_waiting(), "two hold at once");
            handed_over(lease, &mut waiter).await;
        }
    }
    nothing_is_left(&group.servers()[leader], &[one, two]).await;
}

fn others(group: &Group, without: usize) -> impl Iterator<Item = &Server> {
    let all = group.servers().iter().enumerate();
    all.filter(move |(index, _)| *index != without).map(|(_, server)| server)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f91_clients_of_a_member_that_stopped_lose_and_others_go_on() {
    let group = cluster().await;
    let alone = group.servers()[0].url().to_owned();
    let rest: Vec<String> = others(&group, 0).map(endpoint).collect();
    let [one, two] = [client(&alone).await, client(&format!("etcd://{}", rest.join(","))).await];
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
    nothing_is_left(&group.servers()[0], &[one, two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f91_without_a_majority_leases_are_lost_in_time_and_nothing_is_granted() {
    let group = cluster().await;
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
    nothing_is_left(&group.servers()[0], &[client]).await;
}
