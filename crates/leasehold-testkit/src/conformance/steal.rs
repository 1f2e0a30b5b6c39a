//! Stealing a name: its holders lose it, the thief holds it, and those who wait keep their order.

use std::sync::Arc;

use leasehold::claim::{Claim, Standing};
use leasehold::engine::{EventKind, Eviction, Query, Wake};
use leasehold::layer::chaos::{Chaos, Trouble, Verb};
use leasehold::{
    Client, Error, Fence, Holder, LeaseState, LockOptions, Mode, Name, Released, Result, UnlessHeld,
};

use super::forward::{Diary, Forward};
use super::harness::{Harness, LONG, SPAN};
use super::support::{
    Failure, Outcome, Waiter, claim, ended, held, line, renewal, soon, until, until_waiting,
};
use super::watch::expect;
use crate::PartVerbs;

super::cases! {
    thief_holds_before_those_who_wait_and_the_holder_is_lost: steal,
    thief_takes_a_free_name: steal,
    thief_takes_the_name_from_all_readers: steal & shared,
    thief_takes_no_semaphore: steal & permits,
    stolen_lease_is_renewed_and_lost_as_any_other: steal,
    waiters_of_a_stolen_name_keep_their_order: steal & fifo,
    name_that_is_stolen_and_given_back_at_once_goes_to_the_first_waiter: steal & fifo,
    fences_rise_through_thefts: steal,
    theft_whose_answer_is_lost_is_found: steal,
    theft_that_failed_leaves_no_claim: steal,
    repeated_order_to_steal_leaves_the_next_claim_alone: steal,
    waiter_that_is_granted_meanwhile_is_a_holder_to_the_thief: steal & fifo,
    late_bell_and_heartbeat_of_a_place_that_was_stolen_grant_nothing: steal & fifo,
    bell_of_a_place_that_was_stolen_names_no_later_place: steal,
    stopped_waiter_keeps_its_place_behind_a_thief: steal & across_processes & fifo,
    watch_tells_of_a_theft_and_of_new_places: steal & watch,
}

/// The fence of a claim that holds.
#[track_caller]
fn holds(standing: &Standing) -> u64 {
    let Standing::Held { fence, .. } = standing else { panic!("{standing:?}") };
    *fence
}

/// The place of a claim that waits.
#[track_caller]
fn waits(standing: &Standing) -> u64 {
    let Standing::Queued { place, .. } = standing else { panic!("{standing:?}") };
    place.number()
}

/// The fences of all who wait for a name.
async fn places(client: &Client, name: &str) -> std::result::Result<Vec<Fence>, Failure> {
    Ok(line(client, name).await?.waiting.iter().map(|claim| claim.fence).collect())
}

fn order(name: &str, fences: &[u64]) -> Result<Eviction> {
    Ok(Eviction {
        name: Name::new(name)?,
        fences: fences.to_vec(),
        unreadable: false,
        by: Holder::fresh(),
        reason: "stuck".into(),
    })
}

async fn thief_holds_before_those_who_wait_and_the_holder_is_lost(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let name = "steal:before";
    let [one, two, thief] = lab.clients().await?;
    let lease = one.mutex(name).ttl(lab.steady()).lock().await?;
    let mut waiter = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    let before = places(&one, name).await?;
    let options = LockOptions::new().ttl(LONG).note("repair");
    let stolen = thief.admin().steal_with(name, "stuck", options).await?;
    assert!(stolen.is_held() && stolen.fence() > lease.fence());
    let now = line(&one, name).await?;
    assert_eq!((now.held.len(), now.waiting.len()), (1, 1));
    assert_eq!((&now.held[0].holder, now.held[0].fence), (thief.holder(), stolen.fence()));
    assert_eq!(now.held[0].note.as_str(), "repair");
    assert_eq!(now.waiting[0].holder, *two.holder());
    assert!(before[0] < stolen.fence() && stolen.fence() < now.waiting[0].fence);
    soon("the loss", lease.lost()).await?;
    assert_eq!(lease.state(), LeaseState::Lost);
    assert_eq!(lease.release().await?, Released::TakenBy(thief.holder().clone()));
    assert!(waiter.is_waiting());
    assert_eq!(stolen.release().await?, Released::Released);
    waiter.served().await
}

async fn thief_takes_a_free_name(lab: Arc<dyn Harness>) -> Outcome {
    let client = lab.client().await?;
    let stolen = client.admin().steal("steal:free", "nobody has it").await?;
    assert!(client.mutex("steal:free").try_lock().await.unless_held()?.is_none());
    assert_eq!(stolen.release().await?, Released::Released);
    Ok(())
}

async fn thief_takes_the_name_from_all_readers(lab: Arc<dyn Harness>) -> Outcome {
    let name = "steal:readers";
    let [one, two, thief] = lab.clients().await?;
    let readers = [
        one.request(name).mode(Mode::Shared).ttl(LONG).acquire().await?,
        two.request(name).mode(Mode::Shared).ttl(LONG).acquire().await?,
    ];
    let mut writer = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    let next = one.request(name).mode(Mode::Shared).ttl(LONG);
    let mut reader = Waiter::queue(&one, name, next, 1).await?;
    let stolen = thief.admin().steal(name, "stuck").await?;
    assert_eq!(line(&one, name).await?.held.len(), 1);
    for lost in readers {
        assert_eq!(lost.release().await?, Released::TakenBy(thief.holder().clone()));
    }
    stolen.release().await?;
    let lease = writer.granted().await?;
    assert!(reader.is_waiting());
    lease.release().await?;
    reader.served().await
}

async fn thief_takes_no_semaphore(lab: Arc<dyn Harness>) -> Outcome {
    let name = "steal:permits";
    let [one, thief] = lab.clients().await?;
    let permit = one.semaphore(name, 2).ttl(LONG).acquire().await?;
    let refused = thief.admin().steal(name, "stuck").await;
    assert!(matches!(refused, Err(Error::Mismatch { .. })), "{refused:?}");
    assert_eq!(permit.release().await?, Released::Released);
    Ok(())
}

async fn stolen_lease_is_renewed_and_lost_as_any_other(lab: Arc<dyn Harness>) -> Outcome {
    let name = "steal:again";
    let [one, two] = lab.clients().await?;
    let options = LockOptions::new().ttl(lab.steady());
    let first = one.admin().steal_with(name, "first", options).await?;
    let deadline = first.deadline();
    until("a renewal", async || Ok(first.deadline() > deadline)).await?;
    let second = two.admin().steal(name, "second").await?;
    soon("the loss", first.lost()).await?;
    assert!(second.is_held() && second.fence() > first.fence());
    until("the loss to be counted", async || Ok(one.stats().lost == 1)).await?;
    assert_eq!(second.release().await?, Released::Released);
    Ok(())
}

async fn waiters_of_a_stolen_name_keep_their_order(lab: Arc<dyn Harness>) -> Outcome {
    let name = "steal:order";
    let [one, two, three, thief] = lab.clients().await?;
    let _lease = one.mutex(name).ttl(LONG).lock().await?;
    let mut first = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    let mut second = Waiter::queue(&one, name, three.request(name).ttl(LONG), 1).await?;
    let mut third = Waiter::queue(&one, name, two.request(name).ttl(LONG), 2).await?;
    let stolen = thief.admin().steal(name, "stuck").await?;
    let mut last = Waiter::queue(&one, name, thief.request(name).ttl(LONG), 3).await?;
    let places = places(&one, name).await?;
    assert!(places.is_sorted() && stolen.fence() < places[0], "{places:?}");
    stolen.release().await?;
    for (waiter, place) in [&mut first, &mut second, &mut third, &mut last].into_iter().zip(places)
    {
        let lease = waiter.granted().await?;
        assert_eq!(lease.fence(), place, "a waiter overtook another");
        lease.release().await?;
    }
    Ok(())
}

/// The waiter has not heard of its new place when that is granted.
async fn name_that_is_stolen_and_given_back_at_once_goes_to_the_first_waiter(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let name = "steal:at-once";
    let [one, two, three, thief] = lab.clients().await?;
    let _lease = one.mutex(name).ttl(LONG).lock().await?;
    let mut first = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    let mut second = Waiter::queue(&one, name, three.request(name).ttl(LONG), 1).await?;
    let stolen = thief.admin().steal(name, "stuck").await?;
    let fence = stolen.fence();
    stolen.release().await?;
    let lease = first.granted().await?;
    assert!(lease.fence() > fence && second.is_waiting());
    lease.release().await?;
    second.served().await
}

async fn fences_rise_through_thefts(lab: Arc<dyn Harness>) -> Outcome {
    let name = "steal:fences";
    let [one, two, three] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let mut last = lease.fence();
    let mut waiter = Waiter::queue(&one, name, three.request(name).ttl(LONG), 0).await?;
    let mut thefts = Vec::new();
    for client in [&one, &two, &one] {
        let stolen = client.admin().steal(name, "again").await?;
        assert!(stolen.fence() > last, "{} is not above {last}", stolen.fence());
        last = stolen.fence();
        thefts.push(stolen);
    }
    let freed = two.admin().force_release(name, "enough").await?;
    assert!(!freed.is_empty());
    let lease = waiter.granted().await?;
    assert!(lease.fence() > last);
    Ok(())
}

async fn theft_whose_answer_is_lost_is_found(lab: Arc<dyn Harness>) -> Outcome {
    let name = "steal:answer";
    let (thief, chaos) = lab.troubled().await?;
    let [one, two] = lab.clients().await?;
    let _lease = one.mutex(name).ttl(LONG).lock().await?;
    let mut waiter = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    chaos.next(Verb::Claim, Trouble::LoseAnswer, 1);
    let stolen = thief.admin().steal(name, "stuck").await?;
    assert_eq!(chaos.calls(Verb::Claim), 2);
    let now = line(&one, name).await?;
    assert_eq!((now.held.len(), now.waiting.len()), (1, 1));
    assert_eq!(now.held[0].fence, stolen.fence());
    assert!(waiter.is_waiting());
    assert_eq!(stolen.release().await?, Released::Released);
    waiter.served().await
}

/// The caller does not learn that it has the name, and the waiters get it.
async fn theft_that_failed_leaves_no_claim(lab: Arc<dyn Harness>) -> Outcome {
    let name = "steal:failed";
    let (thief, chaos) = lab.troubled().await?;
    let [one, two] = lab.clients().await?;
    let _lease = one.mutex(name).ttl(LONG).lock().await?;
    let mut waiter = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    chaos.next(Verb::Claim, Trouble::LoseAnswer, u32::MAX);
    let failed = soon("an error", thief.admin().steal(name, "stuck")).await?;
    assert!(failed.is_err(), "{failed:?}");
    waiter.served().await
}

async fn repeated_order_to_steal_leaves_the_next_claim_alone(lab: Arc<dyn Harness>) -> Outcome {
    let name = "steal:repeated";
    let engine = lab.engine().await?;
    let [first, thief, next] =
        [(); 3].map(|()| claim(name, Mode::Exclusive, LONG).expect("a good name"));
    let fence = holds(&engine.claim(&first).await?);
    let order = order(name, &[fence])?;
    let stolen = holds(&engine.steal(&thief, &order).await?);
    assert_eq!(holds(&engine.steal(&thief, &order).await?), stolen, "found by its token");
    engine.release(std::slice::from_ref(&thief.key)).await?;
    let third = holds(&engine.claim(&next).await?);
    assert!(fence < stolen && stolen < third);
    let late = engine.steal(&thief, &order).await?;
    assert!(matches!(late, Standing::Out { by: Some(_), .. }), "{late:?}");
    assert_eq!(holds(&engine.claim(&next).await?), third);
    assert_eq!(engine.release(std::slice::from_ref(&next.key)).await?, [Released::Released]);
    Ok(())
}

/// An order names the claims that wait, too. It takes the name from the one that holds by now.
async fn waiter_that_is_granted_meanwhile_is_a_holder_to_the_thief(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let name = "steal:meanwhile";
    let engine = lab.engine().await?;
    let bare = || claim(name, Mode::Exclusive, LONG);
    let (first, thief) = (bare()?, bare()?);
    let [second, third] = [Claim { join: true, ..bare()? }, Claim { join: true, ..bare()? }];
    let fence = holds(&engine.claim(&first).await?);
    let (place, last) = (waits(&engine.claim(&second).await?), waits(&engine.claim(&third).await?));
    engine.release(std::slice::from_ref(&first.key)).await?;
    let before = order(name, &[fence])?;
    let refused = engine.steal(&thief, &before).await?;
    assert!(matches!(refused, Standing::Out { .. }), "{refused:?}");
    let stolen = holds(&engine.steal(&thief, &order(name, &[fence, place, last])?).await?);
    assert!(last < stolen);
    let answers = engine.renew(&[renewal(&second), renewal(&third)]).await?;
    assert!(matches!(&answers[0], Ok(Standing::Out { .. })), "{answers:?}");
    let Ok(moved) = &answers[1] else { panic!("{answers:?}") };
    assert!(waits(moved) > stolen);
    engine.release(&[thief.key, third.key]).await?;
    Ok(())
}

/// The waiter was granted the name, and the thief took it before the waiter heard of either. Its
/// client holds the bell and the answer to a heartbeat back until the waiter has a new place.
async fn late_bell_and_heartbeat_of_a_place_that_was_stolen_grant_nothing(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let name = "steal:late";
    let one = lab.client().await?;
    let (answers, bells) = (Chaos::default(), Chaos::default());
    let deaf = bells.trouble(Forward(lab.engine().await?, None));
    let diary = Arc::<Diary>::default();
    let noted = Forward(Arc::new(answers.trouble(deaf)), Some(Arc::clone(&diary)));
    let far = Client::builder().engine(noted)?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    answers.next(Verb::Renew, Trouble::HangAfter, 1);
    bells.next(Verb::Wait, Trouble::Hang, 1);
    let mut waiter = Waiter::queue(&one, name, far.request(name).ttl(LONG), 0).await?;
    lease.release().await?;
    soon("a heartbeat", answers.hanging(1)).await?;
    let stolen = one.admin().steal(name, "stuck").await?;
    // It asks because its bell is out of order, and joins the line again.
    bells.heal();
    diary.until_placed(2).await?;
    answers.heal();
    diary.until_answered_again().await?;
    assert!(waiter.is_waiting() && stolen.is_held());
    let fence = stolen.fence();
    assert_eq!(line(&one, name).await?.held[0].fence, fence);
    stolen.release().await?;
    let lease = waiter.granted().await?;
    assert!(lease.fence() > fence);
    drop(lease);
    far.close().await?;
    Ok(())
}

/// The bell was rung for a claim that the thief took the name from before its waiter heard it.
async fn bell_of_a_place_that_was_stolen_names_no_later_place(lab: Arc<dyn Harness>) -> Outcome {
    let name = "steal:bell";
    let [near, far] = [lab.engine().await?, lab.engine().await?];
    let bare = || claim(name, Mode::Exclusive, LONG);
    let (first, thief) = (bare()?, bare()?);
    let waiting = Claim { join: true, ..bare()? };
    let fence = holds(&near.claim(&first).await?);
    let place = waits(&far.claim(&waiting).await?);
    near.release(std::slice::from_ref(&first.key)).await?;
    let stolen = holds(&near.steal(&thief, &order(name, &[fence, place])?).await?);
    let later = waits(&far.claim(&waiting).await?);
    assert!(place < stolen && stolen < later);
    let bell = tokio::time::timeout(SPAN, far.wait(&waiting.key)).await;
    if let Ok(wake) = bell
        && let Wake::Holds { place, .. } = wake?
    {
        assert_ne!(place.number(), later, "the name is stolen");
    }
    near.release(std::slice::from_ref(&thief.key)).await?;
    until("a grant", async || Ok(matches!(far.claim(&waiting).await?, Standing::Held { .. })))
        .await?;
    assert_eq!(holds(&far.claim(&waiting).await?), later);
    far.release(std::slice::from_ref(&waiting.key)).await?;
    far.close().await?;
    Ok(())
}

async fn stopped_waiter_keeps_its_place_behind_a_thief(lab: Arc<dyn Harness>) -> Outcome {
    let name = "steal:stopped";
    let [one, two, thief] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let mut worker = lab.process(name, Mode::Exclusive, LONG)?;
    until_waiting(&one, name, 1).await?;
    let mut last = Waiter::queue(&one, name, two.request(name).ttl(LONG), 1).await?;
    worker.stop_process()?;
    let stolen = thief.admin().steal(name, "stuck").await?;
    let places = places(&one, name).await?;
    let fence = stolen.fence();
    assert_eq!(stolen.release().await?, Released::Released);
    worker.continue_process()?;
    assert_eq!(Fence::from(held(&mut worker).await?), places[0]);
    assert!(lease.fence() < fence && fence < places[0] && last.is_waiting());
    worker.send_line("release")?;
    assert_eq!(last.granted().await?.fence(), places[1]);
    ended(&mut worker).await
}

async fn watch_tells_of_a_theft_and_of_new_places(lab: Arc<dyn Harness>) -> Outcome {
    let name = "steal:watch";
    let [one, two, thief] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let mut waiter = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    let mut events = one.admin().watch(&Query::name(Name::new(name)?)).await?;
    let stolen = thief.admin().steal(name, "host db3 is gone").await?;
    let place = places(&one, name).await?[0];
    let evicted = EventKind::Evicted { reason: "host db3 is gone".into() };
    expect(&mut events, evicted, one.holder(), lease.fence()).await?;
    expect(&mut events, EventKind::Granted, thief.holder(), stolen.fence()).await?;
    expect(&mut events, EventKind::Queued, two.holder(), place).await?;
    let fence = stolen.fence();
    stolen.release().await?;
    expect(&mut events, EventKind::Released, thief.holder(), fence).await?;
    expect(&mut events, EventKind::Granted, two.holder(), place).await?;
    waiter.served().await
}
