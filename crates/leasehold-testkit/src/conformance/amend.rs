//! Changing a claim that holds, and a semaphore's limit, without leaving the line.

use std::sync::Arc;

use futures_util::StreamExt;
use leasehold::claim::{Amended, ClaimKey, Note, Standing, Token};
use leasehold::engine::{Engine, EventKind, Query, Resize, Resized};
use leasehold::error::{Kind, TooMany};
use leasehold::layer::chaos::{Trouble, Verb};
use leasehold::{Error, Holder, Mode, Name, Result, UnlessHeld};

use super::harness::{Harness, LONG};
use super::support::{Failure, Outcome, Waiter, claim, line, soon, until_free};
use crate::PartVerbs;

super::cases! {
    note_is_replaced_and_seen_by_others: amend,
    note_survives_renewals_and_a_longer_ttl: amend & ttl_per_claim,
    watcher_sees_an_amended_note: amend & watch,
    waiting_claim_is_not_amended: amend,
    foreign_token_amends_nothing: amend,
    expired_claim_is_not_amended: amend & ttl_per_claim,
    refused_change_of_mode_changes_nothing: convert & permits,
    exclusive_claim_that_becomes_shared_rings_the_readers: convert & shared & fifo,
    sole_reader_becomes_exclusive_and_others_do_not: convert & shared,
    reader_whose_downgrade_was_repeated_does_not_become_exclusive: convert & shared,
    permits_given_back_in_part_go_to_the_next: convert & permits & fifo,
    larger_limit_grants_all_waiters_that_fit: resize & permits & fifo,
    limit_below_what_is_held_or_wanted_is_refused: resize & permits & fifo,
    old_limit_is_a_mismatch_after_a_resize: resize & permits,
    limit_of_a_lock_or_of_nobody_is_not_changed: resize & permits,
}

type Case<T> = std::result::Result<T, Failure>;

fn note(text: &str) -> Result<Note> {
    Note::new(text)
}

async fn granted(engine: &dyn Engine, name: &str, mode: Mode) -> Case<ClaimKey> {
    let claim = claim(name, mode, LONG)?;
    assert!(matches!(engine.claim(&claim).await?, Standing::Held { .. }));
    Ok(claim.key)
}

async fn note_is_replaced_and_seen_by_others(lab: Arc<dyn Harness>) -> Outcome {
    let name = "amend:note";
    let [one, two] = lab.clients().await?;
    let lease = one.request(name).ttl(LONG).note("before").acquire().await?;
    let long = "é".repeat(2_048);
    for text in ["after", "two\nlines\n", "", long.as_str()] {
        lease.set_note(text).await?;
        let seen = line(&two, name).await?;
        assert_eq!(seen.held[0].note.as_str(), text);
        assert_eq!((seen.held[0].fence, &seen.held[0].holder), (lease.fence(), one.holder()));
    }
    assert!(lease.set_note("x".repeat(4_097)).await.is_err());
    assert_eq!(line(&two, name).await?.held[0].note.as_str(), long);
    assert!(lease.is_held());
    Ok(())
}

async fn note_survives_renewals_and_a_longer_ttl(lab: Arc<dyn Harness>) -> Outcome {
    let name = "amend:renewed";
    let [one, two] = lab.clients().await?;
    let first = one.mutex(name).ttl(LONG).lock().await?;
    // A bell grants it, so that the first renewal is still to come.
    let request = two.request(name).note("before").ttl(lab.steady());
    let mut waiter = Waiter::queue(&one, name, request, 0).await?;
    first.release().await?;
    let lease = waiter.granted().await?;
    lease.set_note("after").await?;
    for ttl in [lab.steady(), LONG] {
        lease.extend(ttl).await?;
        assert_eq!(line(&one, name).await?.held[0].note.as_str(), "after");
    }
    lease.set_note("later").await?;
    lease.extend(LONG * 2).await?;
    assert_eq!(line(&one, name).await?.held[0].note.as_str(), "later");
    Ok(())
}

async fn watcher_sees_an_amended_note(lab: Arc<dyn Harness>) -> Outcome {
    let name = "amend:watch";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let mut events = two.admin().watch(&Query::name(Name::new(name)?)).await?;
    lease.set_note("new").await?;
    let event = soon("an event", events.next()).await?.expect("a stream without end")?;
    assert_eq!((event.kind, event.fence), (EventKind::Amended, lease.fence()));
    assert_eq!(&event.holder, one.holder());
    Ok(())
}

async fn waiting_claim_is_not_amended(lab: Arc<dyn Harness>) -> Outcome {
    let name = "amend:waiting";
    let client = lab.client().await?;
    let engine = lab.engine().await?;
    let lease = client.mutex(name).ttl(LONG).lock().await?;
    let mut waits = claim(name, Mode::Exclusive, LONG)?;
    waits.join = true;
    assert!(matches!(engine.claim(&waits).await?, Standing::Queued { .. }));
    let amended = engine.set_note(&waits.key, &note("mine")?).await?;
    assert_eq!(amended, Amended::Out { by: Some(client.holder().clone()) });
    assert_eq!(line(&client, name).await?.waiting[0].note.as_str(), "");
    engine.release(&[waits.key]).await?;
    lease.release().await?;
    Ok(())
}

async fn foreign_token_amends_nothing(lab: Arc<dyn Harness>) -> Outcome {
    let name = "amend:foreign";
    let client = lab.client().await?;
    let engine = lab.engine().await?;
    let key = ClaimKey { name: Name::new(name)?, token: Token::random() };
    assert_eq!(engine.set_note(&key, &note("x")?).await?, Amended::Out { by: None });
    let lease = client.request(name).note("kept").ttl(LONG).acquire().await?;
    let amended = engine.set_note(&key, &note("x")?).await?;
    assert_eq!(amended, Amended::Out { by: Some(client.holder().clone()) });
    let seen = line(&client, name).await?;
    assert_eq!((seen.held.len(), seen.held[0].note.as_str()), (1, "kept"));
    assert!(lease.is_held());
    Ok(())
}

async fn expired_claim_is_not_amended(lab: Arc<dyn Harness>) -> Outcome {
    let name = "amend:expired";
    let client = lab.client().await?;
    let engine = lab.engine().await?;
    let dead = claim(name, Mode::Exclusive, lab.brief())?;
    assert!(matches!(engine.claim(&dead).await?, Standing::Held { .. }));
    until_free(&client, name).await?;
    assert_eq!(engine.set_note(&dead.key, &note("x")?).await?, Amended::Out { by: None });
    let lease = client.mutex(name).ttl(LONG).try_lock().await.unless_held()?.expect("it is free");
    let amended = engine.set_note(&dead.key, &note("x")?).await?;
    assert_eq!(amended, Amended::Out { by: Some(client.holder().clone()) });
    assert!(lease.is_held());
    Ok(())
}

async fn refused_change_of_mode_changes_nothing(lab: Arc<dyn Harness>) -> Outcome {
    let name = "amend:refused";
    let client = lab.client().await?;
    let engine = lab.engine().await?;
    let mode = Mode::Permits { take: 2, of: 4 };
    let key = granted(&*engine, name, mode).await?;
    let others = [
        Mode::Exclusive,
        Mode::Shared,
        Mode::Permits { take: 3, of: 4 },
        Mode::Permits { take: 1, of: 3 },
        Mode::Permits { take: 2, of: 5 },
    ];
    for other in others {
        assert_eq!(engine.set_mode(&key, other).await?, Amended::Refused, "{other:?}");
        let seen = line(&client, name).await?;
        assert_eq!((seen.held[0].mode, seen.held[0].note.as_str()), (mode, ""));
    }
    engine.release(&[key]).await?;
    Ok(())
}

async fn exclusive_claim_that_becomes_shared_rings_the_readers(lab: Arc<dyn Harness>) -> Outcome {
    let name = "amend:downgrade";
    let [one, two, three] = lab.clients().await?;
    let writer = one.rwlock(name).ttl(LONG).write().await?;
    let reader = || two.request(name).mode(Mode::Shared).ttl(LONG);
    let mut first = Waiter::queue(&one, name, reader(), 0).await?;
    let mut second = Waiter::queue(&one, name, reader(), 1).await?;
    let mut next = Waiter::queue(&one, name, three.request(name).ttl(LONG), 2).await?;
    let mut last = Waiter::queue(&one, name, reader(), 3).await?;
    let fence = writer.fence();
    let mine = writer.downgrade().await?;
    let (first, second) = (first.granted().await?, second.granted().await?);
    assert!(mine.is_held() && mine.fence() == fence && first.fence() > fence);
    assert!(next.is_waiting() && last.is_waiting(), "a writer waits between them");
    for lease in [mine.into_lease(), first, second] {
        lease.release().await?;
    }
    next.served().await?;
    last.served().await
}

async fn sole_reader_becomes_exclusive_and_others_do_not(lab: Arc<dyn Harness>) -> Outcome {
    let name = "amend:upgrade";
    let [one, two] = lab.clients().await?;
    let mine = one.rwlock(name).ttl(LONG).read().await?;
    let other = two.rwlock(name).ttl(LONG).read().await?;
    let mine = mine.try_upgrade().await?.expect_err("two read");
    assert!(mine.is_held());
    other.release().await?;
    let fence = mine.fence();
    let mine = mine.try_upgrade().await?.expect("it is alone");
    assert_eq!(mine.fence(), fence);
    assert!(two.rwlock(name).try_read().await.unless_held()?.is_none(), "it writes");
    assert_eq!(line(&two, name).await?.held[0].mode, Mode::Exclusive);
    mine.extend(LONG).await?;
    let mine = mine.downgrade().await?;
    let other = two.rwlock(name).ttl(LONG).try_read().await.unless_held()?.expect("it reads");
    assert!(other.fence() > fence);
    // A waiter does not stand in the way of an exclusive holder.
    other.release().await?;
    let mut writer = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    let mine = mine.try_upgrade().await?.expect("it holds alone");
    assert!(writer.is_waiting());
    mine.release().await?;
    writer.served().await
}

async fn reader_whose_downgrade_was_repeated_does_not_become_exclusive(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let name = "amend:repeated";
    let (client, chaos) = lab.troubled().await?;
    let writer = client.rwlock(name).ttl(LONG).write().await?;
    // The first request may still be in flight, and makes the claim shared whenever it arrives.
    chaos.next(Verb::Amend, Trouble::Refuse, 1);
    let reader = writer.downgrade().await?;
    let reader = reader.try_upgrade().await?.expect_err("the first request may arrive");
    assert_eq!(line(&client, name).await?.held[0].mode, Mode::Shared);
    reader.release().await?;
    Ok(())
}

async fn permits_given_back_in_part_go_to_the_next(lab: Arc<dyn Harness>) -> Outcome {
    let name = "amend:permits";
    let client = lab.client().await?;
    let engine = lab.engine().await?;
    let permits = |take| Mode::Permits { take, of: 4 };
    let key = granted(&*engine, name, permits(3)).await?;
    let request = client.request(name).mode(permits(2)).ttl(LONG);
    let mut waiter = Waiter::queue(&client, name, request, 0).await?;
    let amended = engine.set_mode(&key, permits(2)).await?;
    assert_eq!(amended, Amended::Done);
    let lease = waiter.granted().await?;
    assert_eq!(line(&client, name).await?.held[0].mode, permits(2));
    lease.release().await?;
    engine.release(&[key]).await?;
    Ok(())
}

async fn larger_limit_grants_all_waiters_that_fit(lab: Arc<dyn Harness>) -> Outcome {
    let name = "amend:larger";
    let [one, two, admin] = lab.clients().await?;
    let permits = |take| two.request(name).mode(Mode::Permits { take, of: 2 }).ttl(LONG);
    let lease = one.semaphore(name, 2).ttl(LONG).acquire_many(2).await?;
    let mut first = Waiter::queue(&one, name, permits(2), 0).await?;
    let mut second = Waiter::queue(&one, name, permits(1), 1).await?;
    let mut third = Waiter::queue(&one, name, permits(1), 2).await?;
    assert_eq!(admin.admin().resize(name, 5).await?, Some(2));
    let (first, second) = (first.granted().await?, second.granted().await?);
    assert!(third.is_waiting() && lease.is_held(), "five are out");
    let seen = line(&admin, name).await?;
    assert_eq!(seen.kind, Kind::Permits { of: 5 });
    assert_eq!(seen.held[0].mode, Mode::Permits { take: 2, of: 5 });
    second.release().await?;
    third.served().await?;
    first.extend(LONG).await?;
    Ok(())
}

async fn limit_below_what_is_held_or_wanted_is_refused(lab: Arc<dyn Harness>) -> Outcome {
    let name = "amend:smaller";
    let [one, two, admin] = lab.clients().await?;
    let lease = one.semaphore(name, 4).ttl(LONG).acquire_many(2).await?;
    let request = two.request(name).mode(Mode::Permits { take: 3, of: 4 }).ttl(LONG);
    let mut waiter = Waiter::queue(&one, name, request, 0).await?;
    for (limit, expected) in [(1, TooMany::Held(2)), (2, TooMany::Wanted(3))] {
        match admin.admin().resize(name, limit).await {
            Err(Error::InUse { of, why, .. }) => assert_eq!((of, why), (limit, expected)),
            other => panic!("{limit} came to {other:?}"),
        }
    }
    assert_eq!(line(&admin, name).await?.kind, Kind::Permits { of: 4 });
    assert_eq!(admin.admin().resize(name, 3).await?, Some(4));
    assert!(lease.is_held() && waiter.is_waiting());
    lease.release().await?;
    waiter.served().await
}

async fn old_limit_is_a_mismatch_after_a_resize(lab: Arc<dyn Harness>) -> Outcome {
    let name = "amend:mismatch";
    let [one, two] = lab.clients().await?;
    let lease = one.semaphore(name, 2).ttl(LONG).acquire().await?;
    assert_eq!(two.admin().resize(name, 3).await?, Some(2));
    let old = two.semaphore(name, 2).try_acquire().await.unless_held();
    assert!(
        matches!(old, Err(Error::Mismatch { in_force: Kind::Permits { of: 3 }, .. })),
        "{old:?}"
    );
    assert!(two.semaphore(name, 3).try_acquire_many(2).await.unless_held()?.is_some());
    lease.extend(LONG).await?;
    lease.release().await?;
    Ok(())
}

async fn limit_of_a_lock_or_of_nobody_is_not_changed(lab: Arc<dyn Harness>) -> Outcome {
    let client = lab.client().await?;
    let engine = lab.engine().await?;
    assert_eq!(client.admin().resize("amend:nobody", 3).await?, None);
    let lock = client.mutex("amend:lock").ttl(LONG).lock().await?;
    let resized = client.admin().resize("amend:lock", 3).await;
    assert!(matches!(resized, Err(Error::Mismatch { in_force: Kind::Lock, .. })), "{resized:?}");
    for limit in [0, u32::MAX] {
        assert!(matches!(client.admin().resize("amend:lock", limit).await, Err(Error::Invalid(_))));
    }
    let order = Resize { name: Name::new("amend:gone")?, of: 2, by: Holder::fresh() };
    assert_eq!(engine.resize(&order).await?, Resized::Unused);
    assert!(lock.is_held());
    Ok(())
}
