//! Several names at once: all of them or none, whatever is in the way.

use std::sync::Arc;
use std::time::Duration;

use leasehold::claim::{Mode, Standing};
use leasehold::engine::Query;
use leasehold::layer::chaos::{Trouble, Verb};
use leasehold::{Error, Released, UnlessHeld};

use super::harness::{Harness, LONG};
use super::support::{Outcome, Waiter, claim, line, soon, until_free, until_waiting};
use crate::PartVerbs;

super::cases! {
    many_names_are_held_together_and_given_back_together,
    many_names_are_refused_when_one_is_held,
    many_names_are_taken_in_one_exchange: many,
    many_names_wait_for_the_one_that_is_held,
    name_that_is_listed_twice_is_one,
    those_who_want_the_same_names_in_another_order_do_not_block_each_other,
    f123_many_names_that_are_given_up_leave_nothing,
    f123_many_names_that_fail_half_way_leave_nothing,
    many_claims_are_refused_together: many,
    many_claims_are_safe_to_repeat: many,
    many_names_in_several_modes: shared,
    many_names_of_a_silent_store_are_not_waited_for_past_the_limit,
}

const NAMES: [&str; 3] = ["many:c", "many:a", "many:b"];

async fn many_names_are_held_together_and_given_back_together(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    let leases = one.mutexes(NAMES).lock().await?;
    let names: Vec<_> = leases.iter().map(|lease| lease.name().to_string()).collect();
    assert_eq!(names, ["many:a", "many:b", "many:c"]);
    for name in NAMES {
        let fence = leases.get(name).map(leasehold::Lease::fence);
        assert_eq!(fence, Some(line(&two, name).await?.held[0].fence));
        assert!(two.mutex(name).try_lock().await.unless_held()?.is_none());
    }
    leases.release().await?;
    for name in NAMES {
        until_free(&two, name).await?;
    }
    Ok(())
}

async fn many_names_are_refused_when_one_is_held(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    for held in NAMES {
        let lease = two.mutex(held).ttl(LONG).lock().await?;
        assert!(one.mutexes(NAMES).try_lock().await.unless_held()?.is_none());
        for name in NAMES.iter().filter(|name| **name != held) {
            until_free(&two, name).await?;
        }
        assert_eq!(lease.release().await?, Released::Released);
    }
    assert!(one.mutexes(NAMES).try_lock().await.unless_held()?.is_some());
    Ok(())
}

async fn many_names_are_taken_in_one_exchange(lab: Arc<dyn Harness>) -> Outcome {
    let (one, chaos) = lab.troubled().await?;
    one.mutex("many:warm").lock().await?.release().await?;
    let before = chaos.calls(Verb::Claim);
    let leases = one.mutexes(NAMES).lock().await?;
    assert_eq!(chaos.calls(Verb::Claim) - before, 1);
    leases.release().await?;
    Ok(())
}

async fn many_names_wait_for_the_one_that_is_held(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    let lease = two.mutex("many:b").ttl(LONG).lock().await?;
    let many = one.all(NAMES.map(|name| one.request(name).ttl(LONG)));
    let asked = tokio::spawn(async move { many.lock().await });
    until_waiting(&two, "many:b", 1).await?;
    assert!(!asked.is_finished());
    assert_eq!(lease.release().await?, Released::Released);
    let leases = soon("all of them", asked).await???;
    assert!(leases.are_held());
    assert_eq!(leases.iter().count(), 3);
    leases.release().await?;
    Ok(())
}

async fn name_that_is_listed_twice_is_one(lab: Arc<dyn Harness>) -> Outcome {
    let one = lab.client().await?;
    let twice = ["many:a", "many:b", "many:a"];
    let leases = soon("both of them", one.mutexes(twice).lock()).await??;
    assert_eq!(leases.iter().count(), 2);
    leases.release().await?;
    let modes = [one.request("many:a"), one.request("many:a").mode(Mode::Shared)];
    assert!(matches!(one.all(modes).try_lock().await.unless_held(), Err(Error::Invalid(_))));
    let none: [&str; 0] = [];
    assert!(matches!(one.mutexes(none).try_lock().await.unless_held(), Err(Error::Invalid(_))));
    assert!(matches!(
        one.mutexes(["many:a", ""]).try_lock().await.unless_held(),
        Err(Error::Invalid(_))
    ));
    Ok(())
}

async fn those_who_want_the_same_names_in_another_order_do_not_block_each_other(
    lab: Arc<dyn Harness>,
) -> Outcome {
    const ROUNDS: usize = 10;
    let clients = lab.clients::<3>().await?;
    let workers = clients.map(|client| {
        tokio::spawn(async move {
            for round in 0..ROUNDS {
                let mut names = NAMES;
                names.rotate_left(round % NAMES.len());
                let leases = client.mutexes(names).lock().await?;
                assert!(leases.are_held());
                leases.release().await?;
            }
            Ok::<(), Error>(())
        })
    });
    for worker in workers {
        soon("the end of its rounds", worker).await???;
    }
    Ok(())
}

async fn f123_many_names_that_are_given_up_leave_nothing(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    for held in NAMES {
        let lease = two.mutex(held).ttl(LONG).lock().await?;
        let many = one.all(NAMES.map(|name| one.request(name).ttl(LONG)));
        let asked = tokio::spawn(async move { many.lock().await.map(drop) });
        until_waiting(&two, held, 1).await?;
        asked.abort();
        for name in NAMES.iter().filter(|name| **name != held) {
            until_free(&two, name).await?;
        }
        until_waiting(&two, held, 0).await?;
        assert_eq!(lease.release().await?, Released::Released);
    }
    Ok(())
}

async fn f123_many_names_that_fail_half_way_leave_nothing(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    let lease = two.mutex("many:c").ttl(LONG).lock().await?;
    let many = one.all(NAMES.map(|name| one.request(name).ttl(LONG)));
    let asked = tokio::spawn(async move { many.lock().await });
    until_waiting(&two, "many:c", 1).await?;
    one.close().await?;
    assert!(matches!(soon("the end", asked).await??, Err(Error::Closed)));
    for name in ["many:a", "many:b"] {
        until_free(&two, name).await?;
    }
    until_waiting(&two, "many:c", 0).await?;
    assert_eq!(lease.release().await?, Released::Released);
    Ok(())
}

async fn many_claims_are_refused_together(lab: Arc<dyn Harness>) -> Outcome {
    let engine = lab.engine().await?;
    let mut claims = Vec::new();
    for name in NAMES {
        claims.push(claim(name, Mode::Exclusive, LONG)?);
    }
    let held = claim("many:b", Mode::Exclusive, LONG)?;
    engine.claim(&held).await?;
    assert!(engine.claim_all(&claims).await?.is_none());
    let page = engine.inspect(&Query::prefix("many:")).await?;
    assert_eq!(page.lines.len(), 1, "{:?}", page.lines);
    engine.release(&[held.key]).await?;
    let standings = engine.claim_all(&claims).await?.expect("all are free");
    assert!(standings.iter().all(|standing| matches!(standing, Standing::Held { .. })));
    let keys: Vec<_> = claims.into_iter().map(|claim| claim.key).collect();
    let released = engine.release(&keys).await?;
    assert_eq!(released, vec![Released::Released; 3]);
    Ok(())
}

async fn many_claims_are_safe_to_repeat(lab: Arc<dyn Harness>) -> Outcome {
    let (one, chaos) = lab.troubled().await?;
    let two = lab.client().await?;
    one.mutex("many:warm").lock().await?.release().await?;
    chaos.next(Verb::Claim, Trouble::LoseAnswer, 1);
    let many = one.all(NAMES.map(|name| one.request(name).ttl(LONG)));
    let leases = soon("all of them", many.lock()).await??;
    for lease in &leases {
        let line = line(&two, lease.name().as_str()).await?;
        assert_eq!((line.held.len(), line.waiting.len()), (1, 0));
        assert_eq!(line.held[0].fence, lease.fence());
    }
    leases.release().await?;
    Ok(())
}

async fn many_names_in_several_modes(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    let both =
        [one.request("many:a").mode(Mode::Shared).ttl(LONG), one.request("many:b").ttl(LONG)];
    let leases = one.all(both).lock().await?;
    let reader = two.request("many:a").mode(Mode::Shared).try_acquire().await.unless_held()?;
    assert!(reader.is_some(), "readers share");
    let mut writer = Waiter::start(two.request("many:a").ttl(LONG));
    until_waiting(&two, "many:a", 1).await?;
    leases.release().await?;
    drop(reader);
    writer.served().await?;
    assert!(two.mutex("many:b").lock_within(Duration::from_secs(5)).await.unless_held()?.is_some());
    Ok(())
}

async fn many_names_of_a_silent_store_are_not_waited_for_past_the_limit(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let (one, chaos) = lab.troubled().await?;
    one.mutex("many:warm").lock().await?.release().await?;
    chaos.next(Verb::Claim, Trouble::Hang, 1);
    let many = one.mutexes(NAMES);
    let asked = soon("an answer", many.lock_within(Duration::from_millis(50))).await?;
    let asked = asked.unless_held();
    assert!(matches!(asked, Err(Error::Unreachable { .. })), "{asked:?}");
    chaos.heal();
    Ok(())
}
