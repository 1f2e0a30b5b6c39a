//! Deadlocks across names (F124, F126): each has one victim, and other waits have none.
//!
//! Clients look for deadlocks. A case that expects none counts the looks that found nothing.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::claim::{Claim, Holder, HolderId, Standing};
use leasehold::engine::{Engine, Kept, Notice, Wait};
use leasehold::layer::chaos::{Chaos, Trouble, Verb};
use leasehold::scope::of_task;
use leasehold::{Client, Error, Lease, LockOptions, Mode, Name, Request, Result, UnlessHeld};

use super::harness::{Harness, LONG};
use super::support::{Failure, Outcome, Waiter, claim, line, soon, until, until_waiting};
use crate::PartVerbs;

super::cases! {
    notice_is_heard_until_it_is_taken_back: deadlocks,
    notice_of_a_silent_client_lapses: deadlocks & ttl_per_claim,
    cycle_of_two_has_one_victim: deadlocks,
    cycle_of_three_has_one_victim: deadlocks,
    cycle_of_five_has_one_victim: deadlocks,
    cycle_inside_tasks_has_one_victim: deadlocks,
    cycle_of_holders_in_one_client_has_one_victim: deadlocks,
    victim_that_cannot_look_is_replaced: deadlocks,
    time_limits_apply_where_nobody_can_look: deadlocks,
    converging_waits_have_no_victim: deadlocks,
    lease_of_another_task_is_no_part_of_a_cycle: deadlocks,
    lease_of_another_numbered_task_is_no_part_of_a_cycle: deadlocks,
    cycle_of_numbered_tasks_has_one_victim: deadlocks,
    stale_notice_makes_no_victim: deadlocks & ttl_per_claim,
    expired_lease_makes_no_victim: deadlocks & ttl_per_claim,
    cycle_with_a_free_permit_has_no_victim: deadlocks & permits,
    knot_over_all_permits_has_one_victim: deadlocks & permits,
    reader_and_writer_in_a_cycle_have_one_victim: deadlocks & shared,
    wait_without_detection_is_no_part_of_a_cycle: deadlocks,
    closed_client_leaves_no_notice: deadlocks,
    wait_that_keeps_nothing_costs_nothing: deadlocks,
    lease_that_ends_by_itself_is_no_part_of_a_cycle: deadlocks,
}

/// Short, so that a case with many looks is over soon. A client that is held up for three periods
/// counts as one that cannot look, and a busy machine must not cause that.
const PERIOD: Duration = Duration::from_millis(600);

/// How many looks without a finding are enough.
const LOOKS: u64 = 4;

/// A client whose engine counts its calls and can block them.
async fn looker(lab: &dyn Harness) -> Result<(Client, Chaos)> {
    lab.troubled_with(Client::builder().deadlock_period(PERIOD)).await
}

async fn lookers(lab: &dyn Harness, count: usize) -> Result<Vec<(Client, Chaos)>> {
    let mut lookers = Vec::with_capacity(count);
    for _ in 0..count {
        lookers.push(looker(lab).await?);
    }
    Ok(lookers)
}

fn ask(client: &Client, name: &str) -> Request {
    client.request(name).ttl(LONG)
}

async fn until_looked(boards: &[&Chaos]) -> Outcome {
    let before: Vec<u64> = boards.iter().map(|board| board.calls(Verb::WaitsOf)).collect();
    until("some looks without a finding", async || {
        let looked =
            |(board, before): (&&Chaos, &u64)| board.calls(Verb::WaitsOf) >= before + LOOKS;
        Ok(boards.iter().zip(&before).all(looked))
    })
    .await
}

async fn until_unsaid(engine: &Arc<dyn Engine>, holders: &[HolderId]) -> Outcome {
    until("all notices to be taken back", async || {
        for holder in holders {
            if !engine.waits_of(*holder).await?.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    })
    .await
}

/// The error of the claim that gave up, and its place; all others still wait.
async fn victim(
    waiters: Vec<Waiter>,
) -> std::result::Result<(usize, Error, Vec<Option<Waiter>>), Failure> {
    let mut waiters: Vec<Option<Waiter>> = waiters.into_iter().map(Some).collect();
    let over = |place: usize, waiter: &Option<Waiter>| {
        waiter.as_ref().is_some_and(|waiter| !waiter.is_waiting()).then_some(place)
    };
    let first = || waiters.iter().enumerate().find_map(|(place, waiter)| over(place, waiter));
    until("a victim", async || Ok(first().is_some())).await?;
    let place = first().expect("one has ended");
    let waiter = waiters[place].take().expect("taken once");
    match waiter.ended().await? {
        Err(error @ Error::Deadlock { .. }) => Ok((place, error, waiters)),
        other => Err(Failure::new(format!("a wait ended with {other:?}"))),
    }
}

/// Each client holds one name and waits for the next one. One gives up, and its error names all.
/// When it has given back its lease, the others go on.
async fn ring(lab: &dyn Harness, size: usize) -> Outcome {
    let clients: Vec<Client> =
        lookers(lab, size).await?.into_iter().map(|(client, _)| client).collect();
    let names: Vec<String> = (0..size).map(|place| format!("deadlock:ring:{place}")).collect();
    let mut leases = Vec::new();
    for (client, name) in clients.iter().zip(&names) {
        leases.push(Some(ask(client, name).acquire().await?));
    }
    let mut waiters = Vec::new();
    for (place, client) in clients.iter().enumerate() {
        let next = &names[(place + 1) % size];
        waiters.push(Waiter::queue(client, next, ask(client, next), 0).await?);
    }
    let (place, error, waiters) = victim(waiters).await?;
    let Error::Deadlock { name, cycle } = &error else { panic!("{error}") };
    let order = (0..size).map(|step| (place + 1 + step) % size);
    let expected: Vec<(Name, Holder)> = order
        .map(|at| Ok((Name::new(&names[at])?, clients[at].holder().clone())))
        .collect::<Result<_>>()?;
    assert_eq!((name.as_str(), &cycle.0), (names[(place + 1) % size].as_str(), &expected));
    for (name, client) in names.iter().zip(&clients) {
        let text = error.to_string();
        assert!(text.contains(name) && text.contains(client.holder().label()), "{text}");
    }
    go_on(place, leases, waiters).await?;
    let holders: Vec<HolderId> = clients.iter().map(|client| client.holder().id()).collect();
    until_unsaid(&lab.engine().await?, &holders).await
}

/// The victim gives back its lease, then each client in turn.
async fn go_on(
    victim: usize,
    mut leases: Vec<Option<Lease>>,
    mut waiters: Vec<Option<Waiter>>,
) -> Outcome {
    let size = leases.len();
    for step in 0..size {
        let place = (victim + size - step) % size;
        if let Some(waiter) = &mut waiters[place] {
            waiter.served().await?;
        }
        leases[place].take().expect("still held").release().await?;
    }
    Ok(())
}

async fn cycle_of_two_has_one_victim(lab: Arc<dyn Harness>) -> Outcome {
    ring(&*lab, 2).await
}

async fn cycle_of_three_has_one_victim(lab: Arc<dyn Harness>) -> Outcome {
    ring(&*lab, 3).await
}

async fn cycle_of_five_has_one_victim(lab: Arc<dyn Harness>) -> Outcome {
    ring(&*lab, 5).await
}

fn notice(holder: &Holder, client: u128, waits: Vec<Wait>) -> Notice {
    Notice { holder: holder.id(), client, waits, keep: LONG }
}

async fn notice_is_heard_until_it_is_taken_back(lab: Arc<dyn Harness>) -> Outcome {
    let (engine, other) = (lab.engine().await?, lab.engine().await?);
    let (holder, stranger) = (Holder::fresh(), Holder::fresh());
    let odd = Name::new("odd {k1 2:}\n/é😀'\\")?;
    let keeps = vec![Kept { name: odd.clone(), fence: 0 }, Kept { name: odd.clone(), fence: 7 }];
    let wait = |fence| Wait { name: odd.clone(), fence, keeps: keeps.clone() };
    engine.announce(&notice(&holder, 1, vec![wait(1), wait(u64::MAX)])).await?;
    engine.announce(&notice(&holder, 1, vec![wait(2)])).await?;
    assert_eq!(other.waits_of(holder.id()).await?, [wait(2)], "it replaces what was said before");
    other.announce(&notice(&holder, 2, vec![wait(3)])).await?;
    let both = engine.waits_of(holder.id()).await?;
    assert!(both.contains(&wait(2)) && both.contains(&wait(3)) && both.len() == 2, "{both:?}");
    assert_eq!(engine.waits_of(stranger.id()).await?, []);
    engine.announce(&notice(&holder, 1, Vec::new())).await?;
    engine.announce(&notice(&holder, 1, Vec::new())).await?;
    assert_eq!(engine.waits_of(holder.id()).await?, [wait(3)], "of the other client");
    other.announce(&notice(&holder, 2, Vec::new())).await?;
    assert_eq!(engine.waits_of(holder.id()).await?, []);
    Ok(())
}

async fn notice_of_a_silent_client_lapses(lab: Arc<dyn Harness>) -> Outcome {
    let engine = lab.engine().await?;
    let holder = Holder::fresh();
    let wait = Wait { name: Name::new("n")?, fence: 1, keeps: Vec::new() };
    let keep = lab.brief();
    engine.announce(&Notice { keep, ..notice(&holder, 1, vec![wait]) }).await?;
    until_unsaid(&engine, &[holder.id()]).await
}

async fn cycle_inside_tasks_has_one_victim(lab: Arc<dyn Harness>) -> Outcome {
    let together = Arc::new(tokio::sync::Barrier::new(2));
    let mut tasks = Vec::new();
    for (own, next) in [("deadlock:x", "deadlock:y"), ("deadlock:y", "deadlock:x")] {
        let ((client, _), together) = (looker(&*lab).await?, Arc::clone(&together));
        tasks.push(tokio::spawn(async move {
            let lease = ask(&client, own).acquire().await?;
            together.wait().await;
            let waited = ask(&client, next).acquire().await;
            lease.release().await?;
            waited.map(|_lease| ())
        }));
    }
    let mut victims = 0;
    for task in tasks {
        match soon("a task's end", task).await?? {
            Err(Error::Deadlock { .. }) => victims += 1,
            other => other?,
        }
    }
    assert_eq!(victims, 1);
    Ok(())
}

async fn cycle_of_holders_in_one_client_has_one_victim(lab: Arc<dyn Harness>) -> Outcome {
    let (client, _) = looker(&*lab).await?;
    let workers = [client.with_own_identity("worker-1")?, client.with_own_identity("worker-2")?];
    let names = ["deadlock:apart:1", "deadlock:apart:2"];
    let mut leases = Vec::new();
    for (worker, name) in workers.iter().zip(names) {
        // Taken in a task of its own: a holder that is apart does one thing at a time.
        let request = ask(worker, name);
        leases.push(Some(tokio::spawn(async move { request.acquire().await }).await??));
    }
    let one = Waiter::queue(&client, names[1], ask(&workers[0], names[1]), 0).await?;
    let two = Waiter::queue(&client, names[0], ask(&workers[1], names[0]), 0).await?;
    let (place, error, waiters) = victim(vec![one, two]).await?;
    assert!(error.to_string().contains("worker-1") && error.to_string().contains("worker-2"));
    go_on(place, leases, waiters).await
}

/// Two clients that hold one name each and wait for the other's. Neither can look yet.
async fn blind_pair(
    lab: &dyn Harness,
) -> std::result::Result<(Vec<(Client, Chaos)>, Vec<Option<Lease>>, Vec<Waiter>), Failure> {
    let members = lookers(lab, 2).await?;
    let (mut leases, mut waiters) = (Vec::new(), Vec::new());
    for (place, (client, board)) in members.iter().enumerate() {
        board.next(Verb::WaitsOf, Trouble::Refuse, u32::MAX);
        leases.push(Some(ask(client, &format!("deadlock:blind:{place}")).acquire().await?));
    }
    for (place, (client, _)) in members.iter().enumerate() {
        let next = format!("deadlock:blind:{}", 1 - place);
        waiters.push(Waiter::queue(client, &next, ask(client, &next), 0).await?);
    }
    Ok((members, leases, waiters))
}

async fn victim_that_cannot_look_is_replaced(lab: Arc<dyn Harness>) -> Outcome {
    let (members, leases, waiters) = blind_pair(&*lab).await?;
    let mut fences = Vec::new();
    for place in 0..2 {
        let name = format!("deadlock:blind:{}", 1 - place);
        fences.push((line(&members[0].0, &name).await?.waiting[0].fence, name));
    }
    let seeing = if fences[0] > fences[1] { 1 } else { 0 };
    members[seeing].1.heal();
    let (place, _, waiters) = victim(waiters).await?;
    assert_eq!(place, seeing, "the one whose turn it was is blind");
    go_on(place, leases, waiters).await
}

async fn time_limits_apply_where_nobody_can_look(lab: Arc<dyn Harness>) -> Outcome {
    let (members, leases, waiters) = blind_pair(&*lab).await?;
    until_looked(&[&members[0].1, &members[1].1]).await?;
    assert!(waiters.iter().all(Waiter::is_waiting));
    drop(waiters);
    until_waiting(&members[0].0, "deadlock:blind:1", 0).await?;
    let request = ask(&members[0].0, "deadlock:blind:1");
    let waited = soon("a time limit", request.acquire_within(2 * PERIOD)).await?.unless_held()?;
    assert!(waited.is_none() && leases.iter().flatten().all(Lease::is_held));
    Ok(())
}

async fn converging_waits_have_no_victim(lab: Arc<dyn Harness>) -> Outcome {
    let hub = "deadlock:hub";
    let (owner, _) = looker(&*lab).await?;
    let lease = ask(&owner, hub).acquire().await?;
    let members = lookers(&*lab, 3).await?;
    let (mut own, mut waiters) = (Vec::new(), Vec::new());
    for (place, (client, _)) in members.iter().enumerate() {
        own.push(ask(client, &format!("deadlock:spoke:{place}")).acquire().await?);
        waiters.push(Waiter::queue(client, hub, ask(client, hub), place).await?);
    }
    let boards: Vec<&Chaos> = members.iter().map(|(_, board)| board).collect();
    until_looked(&boards).await?;
    assert!(waiters.iter().all(Waiter::is_waiting));
    lease.release().await?;
    for waiter in &mut waiters {
        waiter.served().await?;
    }
    Ok(())
}

async fn lease_of_another_task_is_no_part_of_a_cycle(lab: Arc<dyn Harness>) -> Outcome {
    let members = lookers(&*lab, 2).await?;
    let names = ["deadlock:task:1", "deadlock:task:2"];
    let mut leases = Vec::new();
    for ((client, _), name) in members.iter().zip(names) {
        let request = ask(client, name);
        leases.push(tokio::spawn(async move { request.acquire().await }).await??);
    }
    let mut tasks = Vec::new();
    for (place, (client, _)) in members.iter().enumerate() {
        // A lease that is kept, so that there is a reason to look.
        let (kept, next) = (format!("deadlock:kept:{place}"), names[1 - place]);
        let (kept, next) = (ask(client, &kept), ask(client, next));
        tasks.push(tokio::spawn(async move {
            let _kept = kept.acquire().await?;
            next.acquire().await
        }));
    }
    until_looked(&[&members[0].1, &members[1].1]).await?;
    assert!(tasks.iter().all(|task| !task.is_finished()));
    drop(leases);
    for ended in tasks {
        soon("the other task's lease", ended).await???.release().await?;
    }
    Ok(())
}

/// As the case above, in one tokio task: an event loop of another language has tasks of its own.
async fn lease_of_another_numbered_task_is_no_part_of_a_cycle(lab: Arc<dyn Harness>) -> Outcome {
    let members = lookers(&*lab, 2).await?;
    let names = ["deadlock:number:1", "deadlock:number:2"];
    let mut leases = Vec::new();
    for (task, ((client, _), name)) in (1..).zip(members.iter().zip(names)) {
        leases.push(of_task(task, ask(client, name).acquire()).await?);
    }
    let waits = members.iter().enumerate().map(|(place, (client, _))| {
        let kept = ask(client, &format!("deadlock:number:kept:{place}"));
        let next = ask(client, names[1 - place]);
        of_task(3 + place as u64, async move {
            let _kept = kept.acquire().await?;
            next.acquire().await
        })
    });
    let mut waits = Box::pin(join_all(waits));
    let boards = [&members[0].1, &members[1].1];
    tokio::select! {
        ended = &mut waits => panic!("a wait ended: {ended:?}"),
        looked = until_looked(&boards) => looked?,
    }
    drop(leases);
    for lease in soon("the leases of the other tasks", waits).await? {
        lease?.release().await?;
    }
    Ok(())
}

/// Each request of a session is a tokio task of its own, as on a server; a session is one task.
async fn cycle_of_numbered_tasks_has_one_victim(lab: Arc<dyn Harness>) -> Outcome {
    let members = lookers(&*lab, 2).await?;
    let names = ["deadlock:session:1", "deadlock:session:2"];
    let mut leases = Vec::new();
    for (session, ((client, _), name)) in (1..).zip(members.iter().zip(names)) {
        let request = ask(client, name);
        let taken = of_task(session, async move { request.acquire().await });
        leases.push(Some(tokio::spawn(taken).await??));
    }
    let mut waiters = Vec::new();
    for (place, (client, _)) in members.iter().enumerate() {
        let next = names[1 - place];
        waiters.push(Waiter::start_as(1 + place as u64, ask(client, next)));
        until_waiting(client, next, 1).await?;
    }
    let (place, _, waiters) = victim(waiters).await?;
    go_on(place, leases, waiters).await
}

/// A claim made at the engine itself. No client looks for deadlocks for it or sends heartbeats.
fn bare(name: &str, holder: &Holder, patience: Duration) -> Result<Claim> {
    let joining = claim(name, Mode::Exclusive, LONG)?;
    Ok(Claim { holder: holder.clone(), patience, join: true, ..joining })
}

async fn stale_notice_makes_no_victim(lab: Arc<dyn Harness>) -> Outcome {
    let (client, board) = looker(&*lab).await?;
    let engine = lab.engine().await?;
    let gone = Holder::fresh();
    let own = ask(&client, "deadlock:stale:own").acquire().await?;
    let held = bare("deadlock:stale:held", &gone, LONG)?;
    assert!(matches!(engine.claim(&held).await?, Standing::Held { .. }));
    let waiting = bare("deadlock:stale:own", &gone, lab.brief())?;
    assert!(matches!(engine.claim(&waiting).await?, Standing::Queued { .. }));
    let fence = line(&client, "deadlock:stale:own").await?.waiting[0].fence;
    until_waiting(&client, "deadlock:stale:own", 0).await?;
    let keeps = vec![Kept { name: held.key.name.clone(), fence: 0 }];
    let wait = Wait { name: waiting.key.name.clone(), fence: fence.as_u64(), keeps };
    engine.announce(&notice(&gone, 1, vec![wait])).await?;
    let name = "deadlock:stale:held";
    let mut waiter = Waiter::queue(&client, name, ask(&client, name), 0).await?;
    until_looked(&[&board]).await?;
    assert!(waiter.is_waiting(), "who waited for it is gone");
    engine.release(&[held.key, waiting.key]).await?;
    waiter.served().await?;
    engine.announce(&notice(&gone, 1, Vec::new())).await?;
    own.release().await?;
    Ok(())
}

async fn expired_lease_makes_no_victim(lab: Arc<dyn Harness>) -> Outcome {
    let (client, board) = looker(&*lab).await?;
    let (other, engine) = (lab.client().await?, lab.engine().await?);
    let gone = Holder::fresh();
    let own = ask(&client, "deadlock:expired:own").acquire().await?;
    let name = "deadlock:expired:held";
    let held = Claim { ttl: lab.brief(), ..bare(name, &gone, LONG)? };
    let Standing::Held { fence, .. } = engine.claim(&held).await? else { panic!("held") };
    let next = ask(&other, name).acquire().await?;
    let waiting = bare("deadlock:expired:own", &gone, LONG)?;
    assert!(matches!(engine.claim(&waiting).await?, Standing::Queued { .. }));
    let waits_at = line(&client, "deadlock:expired:own").await?.waiting[0].fence;
    let keeps = vec![Kept { name: held.key.name.clone(), fence }];
    let wait = Wait { name: waiting.key.name.clone(), fence: waits_at.as_u64(), keeps };
    engine.announce(&notice(&gone, 1, vec![wait])).await?;
    let mut waiter = Waiter::queue(&client, name, ask(&client, name), 0).await?;
    until_looked(&[&board]).await?;
    assert!(waiter.is_waiting(), "its lease is somebody else's by now");
    next.release().await?;
    waiter.served().await?;
    engine.release(&[waiting.key]).await?;
    engine.announce(&notice(&gone, 1, Vec::new())).await?;
    own.release().await?;
    Ok(())
}

const POOL: &str = "deadlock:pool";
const LOCK: &str = "deadlock:lock";

fn permit(client: &Client) -> Request {
    ask(client, POOL).mode(Mode::Permits { take: 1, of: 2 })
}

async fn cycle_with_a_free_permit_has_no_victim(lab: Arc<dyn Harness>) -> Outcome {
    let members = lookers(&*lab, 3).await?;
    let [one, two, free] = [0, 1, 2].map(|place| &members[place].0);
    let (_first, second) = (permit(one).acquire().await?, permit(free).acquire().await?);
    let lock = ask(two, LOCK).acquire().await?;
    let mut locking = Waiter::queue(one, LOCK, ask(one, LOCK), 0).await?;
    let mut taking = Waiter::queue(two, POOL, permit(two), 0).await?;
    until_looked(&[&members[0].1, &members[1].1]).await?;
    assert!(locking.is_waiting() && taking.is_waiting());
    second.release().await?;
    taking.served().await?;
    lock.release().await?;
    locking.served().await
}

async fn knot_over_all_permits_has_one_victim(lab: Arc<dyn Harness>) -> Outcome {
    let members = lookers(&*lab, 3).await?;
    let [one, two, three] = [0, 1, 2].map(|place| &members[place].0);
    let permits = [permit(one).acquire().await?, permit(three).acquire().await?];
    let lock = ask(two, LOCK).acquire().await?;
    let waiters = vec![
        Waiter::queue(one, LOCK, ask(one, LOCK), 0).await?,
        Waiter::queue(three, LOCK, ask(three, LOCK), 1).await?,
        Waiter::queue(two, POOL, permit(two), 0).await?,
    ];
    let (_, _, mut waiters) = victim(waiters).await?;
    let others = waiters.iter().flatten().filter(|waiter| waiter.is_waiting()).count();
    assert_eq!(others, 2, "one victim");
    drop((permits, lock));
    for waiter in waiters.iter_mut().flatten() {
        waiter.served().await?;
    }
    Ok(())
}

async fn reader_and_writer_in_a_cycle_have_one_victim(lab: Arc<dyn Harness>) -> Outcome {
    let book = "deadlock:book";
    let members = lookers(&*lab, 3).await?;
    let [reader, writer, free] = [0, 1, 2].map(|place| &members[place].0);
    let shared = |client| ask(client, book).mode(Mode::Shared);
    let (read, also) = (shared(reader).acquire().await?, shared(free).acquire().await?);
    let lock = ask(writer, LOCK).acquire().await?;
    let one = Waiter::queue(reader, LOCK, ask(reader, LOCK), 0).await?;
    let two = Waiter::queue(writer, book, ask(writer, book), 0).await?;
    let (_, _, mut waiters) = victim(vec![one, two]).await?;
    drop((read, also, lock));
    for waiter in waiters.iter_mut().flatten() {
        waiter.served().await?;
    }
    Ok(())
}

async fn wait_without_detection_is_no_part_of_a_cycle(lab: Arc<dyn Harness>) -> Outcome {
    let (on, board) = looker(&*lab).await?;
    let off = lab.client_with(Client::builder().deadlock_period(None)).await?;
    let names = ["deadlock:on", "deadlock:off"];
    let leases = [ask(&on, names[0]).acquire().await?, ask(&off, names[1]).acquire().await?];
    let mut one = Waiter::queue(&on, names[1], ask(&on, names[1]), 0).await?;
    let mut two = Waiter::queue(&on, names[0], ask(&off, names[0]), 0).await?;
    until_looked(&[&board]).await?;
    assert!(one.is_waiting() && two.is_waiting());
    drop(leases);
    one.served().await?;
    two.served().await
}

async fn closed_client_leaves_no_notice(lab: Arc<dyn Harness>) -> Outcome {
    let (client, board) = looker(&*lab).await?;
    let other = lab.client().await?;
    let engine = lab.engine().await?;
    let _own = ask(&client, "deadlock:close:own").acquire().await?;
    let name = "deadlock:close:other";
    let held = ask(&other, name).acquire().await?;
    let waiter = Waiter::queue(&client, name, ask(&client, name), 0).await?;
    until_looked(&[&board]).await?;
    assert_eq!(engine.waits_of(client.holder().id()).await?.len(), 1);
    client.close().await?;
    assert_eq!(engine.waits_of(client.holder().id()).await?, []);
    assert!(matches!(waiter.ended().await?, Err(Error::Closed)));
    held.release().await?;
    Ok(())
}

async fn wait_that_keeps_nothing_costs_nothing(lab: Arc<dyn Harness>) -> Outcome {
    let hub = "deadlock:idle";
    let members = lookers(&*lab, 2).await?;
    let (idle, keeping) = (&members[0], &members[1]);
    let held = ask(&lab.client().await?, hub).acquire().await?;
    let own = ask(&keeping.0, "deadlock:idle:own").acquire().await?;
    let mut first = Waiter::queue(&idle.0, hub, ask(&idle.0, hub), 0).await?;
    let mut second = Waiter::queue(&idle.0, hub, ask(&keeping.0, hub), 1).await?;
    until_looked(&[&keeping.1]).await?;
    let asked = [Verb::Announce, Verb::WaitsOf].map(|verb| idle.1.calls(verb));
    assert_eq!(asked, [0, 0], "nobody could wait for one who has nothing");
    held.release().await?;
    first.served().await?;
    second.served().await?;
    own.release().await?;
    Ok(())
}

async fn lease_that_ends_by_itself_is_no_part_of_a_cycle(lab: Arc<dyn Harness>) -> Outcome {
    let members = lookers(&*lab, 2).await?;
    let names = ["deadlock:limited:1", "deadlock:limited:2"];
    let (one, two) = (&members[0].0, &members[1].0);
    let limited =
        ask(one, names[0]).options(LockOptions::new().hold_at_most(LONG)).acquire().await?;
    let (other, kept) =
        (ask(two, names[1]).acquire().await?, ask(one, "deadlock:limited:3").acquire().await?);
    let waiting = Waiter::queue(one, names[1], ask(one, names[1]), 0).await?;
    let mut next = Waiter::queue(one, names[0], ask(two, names[0]), 0).await?;
    until_looked(&[&members[0].1, &members[1].1]).await?;
    assert!(waiting.is_waiting() && next.is_waiting(), "it ends with its longest time");
    drop(limited);
    next.served().await?;
    drop((waiting, other, kept));
    Ok(())
}
