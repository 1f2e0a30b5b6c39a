//! Claims that lose their place in line while messages about it are in flight.
//!
//! The processes that wait are stopped, or their network stalls, for longer than the store keeps
//! them in line; or the test kills the servers. Everything that they hear afterwards is about
//! places that are gone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::claim::{Claim, Mode, Released, Standing};
use leasehold::engine::{Engine, Query, Wake};
use leasehold::layer::chaos::{Chaos, Trouble, Verb};
use leasehold::{Client, Error, Request, Result};

use super::crowd::{Crowd, Size};
use super::forward::{Diary, Forward};
use super::grants::{Grant, Holding, check};
use super::harness::{Harness, LONG, Proxied, SPAN};
use super::support::{Failure, Outcome, claim, renewal, soon, until, until_waiting};
use crate::Direction;

// A store without handles keeps a place for a connection, and so for a stopped process.
super::cases! {
    stopped_waiters_that_lost_their_places_are_not_granted_by_what_they_hear_late:
        across_processes & ttl_per_claim & detach,
    waiters_that_are_handed_the_name_while_they_are_stopped_do_not_hold_when_they_go_on:
        across_processes & ttl_per_claim,
    waiters_cut_off_until_their_places_are_gone_are_not_granted_by_what_they_hear_late:
        across_processes & ttl_per_claim & detach => proxied,
    waiters_that_are_handed_the_name_while_they_are_cut_off_do_not_hold_when_they_go_on:
        across_processes & ttl_per_claim => proxied,
    waiters_whose_heartbeats_are_answered_when_their_places_are_gone_are_not_granted_by_that:
        across_processes & ttl_per_claim & detach => proxied,
    waiters_that_read_late_that_they_stand_at_places_that_are_gone_are_not_granted_by_that:
        ttl_per_claim & detach & fifo => proxied,
    heartbeat_answered_late_says_nothing_of_the_next_place: detach & fifo => proxied,
    // On Redlock no other client can take a waiting claim out of the line.
    heartbeat_whose_answer_is_held_back_keeps_no_later_place: waits_by_token & detach & fifo,
    // Without an order of arrival, as in Redlock, and where a place is a connection's, as with
    // advisory locks, a claim that comes back may be granted before others.
    claim_asked_for_again_when_its_patience_ends_is_granted_no_place_that_is_gone:
        ttl_per_claim & detach & fifo,
    waiters_of_several_processes_take_turns_after_the_servers_were_killed:
        across_processes => crashing,
}

/// The ttl of claims that lose their place, so that it is also their patience.
const TTL: Duration = Duration::from_secs(2);

/// How many wait in the process that is paused.
const WAITERS: usize = 4;

fn ttl(lab: &dyn Harness) -> Duration {
    lab.ttl_floor().max(TTL)
}

/// How a process is kept from hearing of its claims.
#[derive(Debug, Clone, Copy)]
enum Pause<'a> {
    Stopped,
    CutOff(&'a Proxied),
}

impl Pause<'_> {
    fn begin(self, crowd: &mut Crowd) -> Outcome {
        match self {
            Pause::Stopped => crowd.stop_processes(),
            Pause::CutOff(network) => {
                network.block(Direction::Both);
                Ok(())
            }
        }
    }

    async fn end(self, crowd: &mut Crowd) -> Outcome {
        match self {
            Pause::Stopped => crowd.continue_processes(),
            Pause::CutOff(network) => network.pass().await,
        }
    }
}

/// A name that is held, and a process that waits for it.
struct Scene {
    near: Client,
    name: &'static str,
    first: Holding,
    crowd: Crowd,
}

impl Scene {
    /// `far` is the url of the process that waits.
    async fn new(
        lab: &dyn Harness,
        far: &dyn Harness,
        name: &'static str,
    ) -> std::result::Result<Self, Failure> {
        let near = lab.client().await?;
        let first = Holding::take(&near.request(name).ttl(LONG)).await?;
        let size = Size { processes: 1, tasks: WAITERS };
        let crowd = Crowd::start(far, name, size, ttl(lab))?;
        until_waiting(&near, name, WAITERS).await?;
        Ok(Self { near, name, first, crowd })
    }

    /// Pauses the process until its places are gone.
    async fn lose_places(mut self, pause: Pause<'_>) -> Outcome {
        pause.begin(&mut self.crowd)?;
        until_waiting(&self.near, self.name, 0).await?;
        // The process hears of the end of its places first, and then of the holder's.
        self.go_on(pause).await
    }

    /// Lets another client take the name, and lets the paused process go on beside it.
    async fn go_on(self, pause: Pause<'_>) -> Outcome {
        let Self { near, name, first, mut crowd } = self;
        let (first, released) = first.give_back().await;
        assert_eq!(released?, Released::Released);
        // The store grants it after it has passed over all paused claims.
        let second = soon("a grant", Holding::take(&near.request(name).ttl(LONG))).await??;
        pause.end(&mut crowd).await?;
        until_waiting(&near, name, WAITERS).await?;
        tokio::time::sleep(SPAN).await;
        assert!(second.is_held());
        let (second, released) = second.give_back().await;
        assert_eq!(released?, Released::Released);
        let mut grants = crowd.end().await?;
        grants.extend([first, second]);
        check(&grants)
    }
}

async fn stopped_waiters_that_lost_their_places_are_not_granted_by_what_they_hear_late(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let scene = Scene::new(&*lab, &*lab, "lost:stopped").await?;
    scene.lose_places(Pause::Stopped).await
}

async fn waiters_that_are_handed_the_name_while_they_are_stopped_do_not_hold_when_they_go_on(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let mut scene = Scene::new(&*lab, &*lab, "lost:handed").await?;
    Pause::Stopped.begin(&mut scene.crowd)?;
    scene.go_on(Pause::Stopped).await
}

async fn waiters_cut_off_until_their_places_are_gone_are_not_granted_by_what_they_hear_late(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let network = lab.proxied().expect("the case applies").await?;
    let scene = Scene::new(&*lab, &*network.lab, "lost:cut-off").await?;
    scene.lose_places(Pause::CutOff(&network)).await
}

async fn waiters_that_are_handed_the_name_while_they_are_cut_off_do_not_hold_when_they_go_on(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let network = lab.proxied().expect("the case applies").await?;
    let mut scene = Scene::new(&*lab, &*network.lab, "lost:handed-off").await?;
    Pause::CutOff(&network).begin(&mut scene.crowd)?;
    scene.go_on(Pause::CutOff(&network)).await
}

async fn waiters_whose_heartbeats_are_answered_when_their_places_are_gone_are_not_granted_by_that(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let network = lab.proxied().expect("the case applies").await?;
    let scene = Scene::new(&*lab, &*network.lab, "lost:answers").await?;
    network.block(Direction::ToClient);
    // Each waiter sends a heartbeat meanwhile, at the latest every second. The proxies hold the
    // answers back.
    tokio::time::sleep(SPAN).await;
    scene.lose_places(Pause::CutOff(&network)).await
}

#[track_caller]
fn waits(standing: &Standing) {
    assert!(matches!(standing, Standing::Queued { ahead: 1, .. }), "{standing:?}");
}

/// The fence of a claim that holds.
#[track_caller]
fn holds(standing: &Standing) -> u64 {
    let Standing::Held { fence, .. } = standing else { panic!("{standing:?}") };
    *fence
}

/// How often a case tries a race that a slow machine may miss.
const TRIES: usize = 5;

/// A client drops a heartbeat that takes longer than a quarter of the ttl. So the ttl is long, and
/// another client removes the places from the line.
async fn waiters_that_read_late_that_they_stand_at_places_that_are_gone_are_not_granted_by_that(
    lab: Arc<dyn Harness>,
) -> Outcome {
    for number in 0..TRIES {
        if late_reading(&*lab, &format!("lost:reading:{number}"), number % 2 == 1).await? {
            return Ok(());
        }
    }
    Err(Failure::new("no client read late that it stands at a place that is gone"))
}

/// Whether a waiter read that it stands at its first place after that place was gone.
///
/// It reads a late answer to its first heartbeat or to a later one. For the first, some clients
/// open a connection. For a later one, etcd is asked twice, and the second answer is not late.
async fn late_reading(
    lab: &dyn Harness,
    name: &str,
    is_later: bool,
) -> std::result::Result<bool, Failure> {
    const TTL: Duration = Duration::from_secs(20);
    let network = lab.proxied().expect("the case applies").await?;
    let (engine, near) = (lab.engine().await?, lab.client().await?);
    let first = claim(name, Mode::Exclusive, LONG)?;
    holds(&engine.claim(&first).await?);
    let diary = Arc::<Diary>::default();
    let noted = Forward(network.lab.engine().await?, Some(Arc::clone(&diary)));
    let far = Client::builder().engine(noted)?;
    let turn = || tokio::spawn(turn(far.request(name).ttl(TTL)));
    let waiters: Vec<_> = (0..WAITERS).map(|_| turn()).collect();
    until_waiting(&near, name, WAITERS).await?;
    if is_later {
        diary.until_answered().await?;
    }
    network.block(Direction::ToClient);
    diary.until_sent().await?;
    // The servers answer meanwhile. If they are slower, the case is tried again.
    tokio::time::sleep(SPAN / 4).await;
    engine.release(&diary.keys()).await?;
    // This claim is before them when they come back.
    let request = near.request(name).ttl(LONG);
    let second = tokio::spawn(async move { Holding::take(&request).await });
    until_waiting(&near, name, 1).await?;
    let passed = Instant::now();
    network.pass().await?;
    until_waiting(&near, name, WAITERS + 1).await?;
    engine.release(std::slice::from_ref(&first.key)).await?;
    let second = soon("a grant", second).await???;
    tokio::time::sleep(SPAN).await;
    assert!(second.is_held());
    let (second, released) = second.give_back().await;
    assert_eq!(released?, Released::Released);
    let mut grants = vec![second];
    for waiter in waiters {
        grants.push(soon("a grant", waiter).await???);
    }
    check(&grants)?;
    far.close().await?;
    Ok(diary.read_late(passed))
}

/// Waits for a lease, and gives it back.
async fn turn(request: Request) -> std::result::Result<Grant, Failure> {
    let (grant, released) = Holding::take(&request).await?.give_back().await;
    released?;
    Ok(grant)
}

async fn heartbeat_answered_late_says_nothing_of_the_next_place(lab: Arc<dyn Harness>) -> Outcome {
    let mut error = None;
    for number in 0..TRIES {
        match answered_late(&*lab, &format!("lost:heartbeat:{number}")).await? {
            Ok(()) => return Ok(()),
            // The client gave up the answer before it came.
            Err(silent) => error = Some(silent),
        }
    }
    Err(Failure::new(format!("no heartbeat was answered: {error:?}")))
}

async fn answered_late(
    lab: &dyn Harness,
    name: &str,
) -> std::result::Result<std::result::Result<(), Error>, Failure> {
    let network = lab.proxied().expect("the case applies").await?;
    let (near, far) = (lab.engine().await?, network.lab.engine().await?);
    let bare = || claim(name, Mode::Exclusive, LONG);
    let (first, second) = (bare()?, bare()?);
    let waiting = Claim { join: true, ..bare()? };
    let first_fence = holds(&near.claim(&first).await?);
    waits(&far.claim(&waiting).await?);
    near.release(&[waiting.key.clone(), first.key.clone()]).await?;
    network.block(Direction::ToClient);
    let (engine, heartbeat) = (Arc::clone(&far), renewal(&waiting));
    let beating = tokio::spawn(async move { engine.renew(&[heartbeat]).await });
    network.until_held().await?;
    let second_fence = holds(&near.claim(&second).await?);
    waits(&near.claim(&waiting).await?);
    network.pass().await?;
    let answer = soon("the answer to the heartbeat", beating).await??;
    let answered = answer.map(|standings| match &standings[..] {
        [Ok(Standing::Queued { ahead, .. })] => assert_eq!(*ahead, 1),
        // The client read it when the claim was in no line.
        [Ok(Standing::Out { .. })] => {}
        _ => panic!("it waits behind another: {standings:?}"),
    });
    if let Err(error) = &answered {
        assert!(error.is_transient(), "{error:?}");
    }
    near.release(std::slice::from_ref(&second.key)).await?;
    let fence = soon("a grant", granted(&*far, &waiting)).await??;
    assert!(first_fence < second_fence && second_fence < fence, "fences do not rise");
    far.release(std::slice::from_ref(&waiting.key)).await?;
    far.close().await?;
    Ok(answered)
}

async fn heartbeat_whose_answer_is_held_back_keeps_no_later_place(
    lab: Arc<dyn Harness>,
) -> Outcome {
    for (again, name) in [(Again::Itself, "itself"), (Again::Another, "another")] {
        held_back_once(&*lab, again, name).await?;
    }
    Ok(())
}

async fn held_back_once(lab: &dyn Harness, again: Again, name: &str) -> Outcome {
    for number in 0..TRIES {
        if held_back(lab, again, &format!("lost:held-back:{name}:{number}")).await? {
            return Ok(());
        }
    }
    Err(Failure::new("no client read an answer that was held back"))
}

/// The client that makes a claim again after its place is gone.
#[derive(Debug, Clone, Copy)]
enum Again {
    /// The client of the waiter, before it reads the answer to the heartbeat.
    Itself,
    /// Another client that has its token. The next heartbeat finds the place.
    Another,
}

/// Whether a waiter read the answer to a heartbeat about its first place when it had another one.
///
/// The client itself holds the answer back, so a store without a network has the case too. It gives
/// up an answer after five seconds.
async fn held_back(
    lab: &dyn Harness,
    again: Again,
    name: &str,
) -> std::result::Result<bool, Failure> {
    const TTL: Duration = Duration::from_secs(20);
    let (engine, near) = (lab.engine().await?, lab.client().await?);
    let (answers, bells) = (Chaos::default(), Chaos::default());
    let deaf = bells.trouble(Forward(lab.engine().await?, None));
    let diary = Arc::<Diary>::default();
    let noted = Forward(Arc::new(answers.trouble(deaf)), Some(Arc::clone(&diary)));
    let far = Client::builder().engine(noted)?;
    let bare = || claim(name, Mode::Exclusive, LONG);
    let (first, second) = (bare()?, bare()?);
    let first_fence = holds(&engine.claim(&first).await?);
    answers.next(Verb::Renew, Trouble::HangAfter, 1);
    bells.next(Verb::Wait, Trouble::Hang, 1);
    let waiter = tokio::spawn(turn(far.request(name).ttl(TTL)));
    soon("a heartbeat", answers.hanging(1)).await?;
    engine.release(&diary.keys()).await?;
    engine.release(std::slice::from_ref(&first.key)).await?;
    let second_fence = holds(&engine.claim(&second).await?);
    match again {
        Again::Itself => {
            // It has heard nothing of all this. It asks because its bell is out of order.
            bells.heal();
            diary.until_placed(2).await?;
        }
        Again::Another => {
            for claim in diary.claims() {
                waits(&engine.claim(&claim).await?);
            }
        }
    }
    until_waiting(&near, name, 1).await?;
    let placed = Instant::now();
    answers.heal();
    diary.until_placed(2).await?;
    // The new place is kept by heartbeats as well.
    diary.until_answered_again().await?;
    let lines = engine.inspect(&Query::name(second.key.name.clone())).await?.lines;
    let held = lines.first().and_then(|line| line.held.first());
    assert_eq!(held.map(|held| held.fence.as_u64()), Some(second_fence));
    assert!(!waiter.is_finished());
    bells.heal();
    engine.release(std::slice::from_ref(&second.key)).await?;
    let grant = soon("a grant", waiter).await???;
    assert!(first_fence < second_fence && second_fence < grant.fence(), "fences do not rise");
    far.close().await?;
    Ok(diary.read_late(placed))
}

/// Asks once more if the store was too busy to answer.
async fn standing(engine: &dyn Engine, asked: &Claim) -> Result<Standing> {
    match engine.claim(asked).await {
        Err(error) if error.is_transient() => engine.claim(asked).await,
        answer => answer,
    }
}

/// Asks until the claim holds; its fence.
async fn granted(engine: &dyn Engine, asked: &Claim) -> Result<u64> {
    loop {
        if let Standing::Held { fence, .. } = standing(engine, asked).await? {
            return Ok(fence);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn claim_asked_for_again_when_its_patience_ends_is_granted_no_place_that_is_gone(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let (near, far) = (lab.engine().await?, lab.engine().await?);
    // Whether the case looked at a grant while it lasted: for claims with none before them, and for
    // others.
    let mut seen = [false; 2];
    for round in 0..TRIES {
        let asked = asked_again(&*lab, (&*near, &*far), round).await;
        for (number, looked) in asked.into_iter().enumerate() {
            seen[number % 2] |= looked?;
        }
        if seen == [true; 2] {
            return Ok(());
        }
    }
    Err(Failure::new("the machine was too slow to look at a grant while it lasts"))
}

/// Each claim asks a little later than the one before it. So some ask while the store, or their own
/// client, removes them.
async fn asked_again(
    lab: &dyn Harness,
    (near, far): (&dyn Engine, &dyn Engine),
    round: usize,
) -> Vec<std::result::Result<bool, Failure>> {
    const CLAIMS: u32 = 24;
    const STEP: Duration = Duration::from_millis(4);
    let asks = (0..CLAIMS).map(|number| {
        let is_free = number % 2 == 0;
        let again = Late { near, far, patience: ttl(lab), late: STEP * number, is_free };
        again.ask(format!("lost:asked-again:{round}:{number}"))
    });
    futures_util::future::join_all(asks).await
}

/// A claim that waits, and whose client asks again when its patience is over.
struct Late<'a> {
    near: &'a dyn Engine,
    far: &'a dyn Engine,
    patience: Duration,
    /// How much later.
    late: Duration,
    /// Whether no claim is before it by then.
    is_free: bool,
}

impl Late<'_> {
    /// Asks again; returns whether the case looked at a grant while it lasted.
    async fn ask(self, name: String) -> std::result::Result<bool, Failure> {
        let Self { near, far, patience, late, is_free } = self;
        let first = claim(&name, Mode::Exclusive, LONG)?;
        let bare = claim(&name, Mode::Exclusive, patience)?;
        let second = Claim { join: true, patience, ..bare };
        let first_fence = holds(&standing(near, &first).await?);
        waits(&standing(far, &second).await?);
        let begun = Instant::now();
        tokio::time::sleep((patience + late).saturating_sub(begun.elapsed())).await;
        let again = Instant::now();
        if is_free {
            near.release(std::slice::from_ref(&first.key)).await?;
        }
        let fence = match standing(far, &second).await? {
            Standing::Held { fence, .. } => Some(fence),
            Standing::Queued { place, .. } => {
                near.release(std::slice::from_ref(&first.key)).await?;
                match tokio::time::timeout(SPAN, far.wait(&second.key)).await {
                    Ok(Ok(Wake::Holds { place: rung, fence })) if rung == place => Some(fence),
                    _ => None,
                }
            }
            standing => panic!("{standing:?}"),
        };
        let page = near.inspect(&Query::name(second.key.name.clone())).await?;
        let held = page.lines.first().and_then(|line| line.held.first());
        // Unless the machine was too slow to look in time.
        let is_late = again.elapsed() > patience / 2;
        let fence = fence.filter(|_| !is_late);
        if fence.is_some() {
            assert_eq!(held.map(|held| held.fence.as_u64()), fence, "free: {is_free}");
        }
        let last_fence = soon("a grant", granted(far, &second)).await??;
        assert!(first_fence < fence.unwrap_or(last_fence), "fences do not rise");
        assert!(fence.is_none_or(|fence| fence <= last_fence), "fences fall");
        far.release(std::slice::from_ref(&second.key)).await?;
        Ok(fence.is_some())
    }
}

async fn waiters_of_several_processes_take_turns_after_the_servers_were_killed(
    lab: Arc<dyn Harness>,
) -> Outcome {
    const SIZE: Size = Size { processes: 4, tasks: 2 };
    let own = lab.crashing().expect("the case applies").await?;
    let ttl = ttl(&*own.lab);
    let mut crowd = Crowd::start(&*own.lab, "lost:killed", SIZE, ttl)?;
    // Shorter than the patience of the waiters, and longer.
    for outage in [Duration::ZERO, ttl * 5 / 4] {
        crowd.granted(SIZE.processes * SIZE.tasks).await?;
        own.servers.kill()?;
        tokio::time::sleep(outage).await;
        own.servers.restart().await?;
        crowd.granted(SIZE.processes * SIZE.tasks * 2).await?;
    }
    check(&crowd.end().await?)?;
    until("an empty store", async || Ok(own.lab.residue().await?.is_empty())).await
}
