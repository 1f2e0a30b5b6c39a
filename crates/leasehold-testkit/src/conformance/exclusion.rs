//! One at a time: the mutex, trying, and giving up in time.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use leasehold::{Client, Error, LockOptions, Released, Result, UnlessHeld};

use super::harness::{Harness, LONG, SPAN};
use super::support::{Outcome, Waiter, line, soon, until_free, until_waiting};

super::cases! {
    many_that_open_an_empty_store_at_once_share_it,
    second_claim_is_refused_while_the_first_holds,
    contenders_never_hold_together,
    refused_try_leaves_nothing,
    wait_ends_in_time_and_leaves_the_line,
    wait_of_no_time_is_granted_what_is_free,
    wait_is_granted_what_is_freed_in_time,
    tasks_of_one_client_exclude_each_other,
    holders_with_one_label_exclude_each_other,
    own_name_is_a_deadlock_for_one_at_a_time,
}

async fn many_that_open_an_empty_store_at_once_share_it(lab: Arc<dyn Harness>) -> Outcome {
    const MANY: usize = 12;
    let name = "exclusion:opened";
    let opened = soon("all are open", join_all((0..MANY).map(|_| lab.client()))).await?;
    let clients = opened.into_iter().collect::<Result<Vec<_>>>()?;
    let stores: HashSet<u128> = clients.iter().map(|client| client.info().store_id).collect();
    assert_eq!(stores.len(), 1, "one store");
    let asked =
        clients.iter().map(async |client| client.mutex(name).try_lock().await.unless_held());
    let asked = soon("all are answered", join_all(asked)).await?;
    let leases = asked.into_iter().collect::<Result<Vec<_>>>()?;
    let leases: Vec<_> = leases.into_iter().flatten().collect();
    // Several that ask at once may all be refused where nodes vote.
    assert!(leases.len() <= 1, "{} hold at once", leases.len());
    drop(leases);
    soon("the lock", clients[0].mutex(name).lock()).await??.release().await?;
    Ok(())
}

async fn second_claim_is_refused_while_the_first_holds(lab: Arc<dyn Harness>) -> Outcome {
    let name = "exclusion:second";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).lock().await?;
    assert!(two.mutex(name).try_lock().await.unless_held()?.is_none());
    assert!(lease.is_held());
    assert_eq!(lease.release().await?, Released::Released);
    let next = two.mutex(name).try_lock().await.unless_held()?.expect("it is free");
    assert!(one.mutex(name).try_lock().await.unless_held()?.is_none());
    drop(next);
    Ok(())
}

async fn contenders_never_hold_together(lab: Arc<dyn Harness>) -> Outcome {
    let inside = Arc::new(AtomicU32::new(0));
    let mut contenders = Vec::new();
    for _ in 0..6 {
        let (client, inside) = (lab.client().await?, Arc::clone(&inside));
        contenders.push(tokio::spawn(async move {
            for _ in 0..20 {
                let lease = client.mutex("exclusion:contended").ttl(LONG).lock().await?;
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold at once");
                tokio::task::yield_now().await;
                assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1, "two hold at once");
                assert_eq!(lease.release().await?, Released::Released);
            }
            client.close().await
        }));
    }
    for contender in contenders {
        soon("a contender's last lease", contender).await???;
    }
    Ok(())
}

async fn refused_try_leaves_nothing(lab: Arc<dyn Harness>) -> Outcome {
    let name = "exclusion:try";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    for _ in 0..3 {
        assert!(two.mutex(name).try_lock().await.unless_held()?.is_none());
    }
    let seen = line(&one, name).await?;
    assert_eq!((seen.held.len(), seen.waiting.len()), (1, 0));
    assert_eq!(two.stats().contended, 3);
    assert_eq!(two.stats().waiting, 0);
    lease.release().await?;
    assert!(one.line(name).await?.is_none());
    Ok(())
}

async fn wait_ends_in_time_and_leaves_the_line(lab: Arc<dyn Harness>) -> Outcome {
    let name = "exclusion:within";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let begun = Instant::now();
    let mutex = two.mutex(name).ttl(LONG);
    assert!(soon("the end of the wait", mutex.lock_within(SPAN)).await?.unless_held()?.is_none());
    assert!(begun.elapsed() >= SPAN, "it gave up after {:?}", begun.elapsed());
    assert_eq!(two.stats().waiting, 0);
    until_waiting(&one, name, 0).await?;
    assert!(lease.is_held());
    lease.release().await?;
    until_free(&one, name).await
}

async fn wait_of_no_time_is_granted_what_is_free(lab: Arc<dyn Harness>) -> Outcome {
    let client = lab.client().await?;
    // The first request of a client may have to connect.
    client.mutex("exclusion:warm").lock().await?.release().await?;
    let lease = loop {
        match client.mutex("exclusion:no-time").lock_within(Duration::ZERO).await.unless_held() {
            // A busy store is slower than a client waits for its first answer. Its claim leaves.
            Err(error) if error.is_transient() => until_free(&client, "exclusion:no-time").await?,
            lease => break lease?,
        }
    };
    assert!(lease.expect("it is free").is_held());
    Ok(())
}

async fn wait_is_granted_what_is_freed_in_time(lab: Arc<dyn Harness>) -> Outcome {
    let name = "exclusion:freed";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let waiter = tokio::spawn({
        let mutex = two.mutex(name).ttl(LONG);
        async move { mutex.lock_within(LONG).await.unless_held() }
    });
    until_waiting(&one, name, 1).await?;
    let fence = lease.fence();
    lease.release().await?;
    let next = soon("a grant", waiter).await???.expect("it was freed in time");
    assert!(next.fence() > fence);
    Ok(())
}

async fn tasks_of_one_client_exclude_each_other(lab: Arc<dyn Harness>) -> Outcome {
    let name = "exclusion:tasks";
    let client = lab.client().await?;
    let lease = client.mutex(name).ttl(LONG).lock().await?;
    assert!(client.mutex(name).try_lock().await.unless_held()?.is_none());
    let request = client.request(name).ttl(LONG);
    let mut waiter = Waiter::queue(&client, name, request, 0).await?;
    let fence = lease.fence();
    lease.release().await?;
    assert!(waiter.granted().await?.fence() > fence);
    Ok(())
}

async fn holders_with_one_label_exclude_each_other(lab: Arc<dyn Harness>) -> Outcome {
    let name = "exclusion:label";
    let one = lab.client_with(Client::builder().label("host:1")).await?;
    let two = lab.client_with(Client::builder().label("host:1")).await?;
    assert_ne!(one.holder().id(), two.holder().id());
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    assert!(two.mutex(name).try_lock().await.unless_held()?.is_none());
    assert!(
        two.mutex(name)
            .options(LockOptions::new().reentrant())
            .try_lock()
            .await
            .unless_held()?
            .is_none()
    );
    drop(two);
    assert!(lease.is_held());
    assert_eq!(lease.release().await?, Released::Released);
    Ok(())
}

async fn own_name_is_a_deadlock_for_one_at_a_time(lab: Arc<dyn Harness>) -> Outcome {
    let name = "exclusion:own";
    let [one, two] = lab.clients().await?;
    let lease = one.mutex(name).ttl(LONG).lock().await?;
    let request = one.request(name).ttl(LONG).options(LockOptions::new().detect_self_deadlock());
    match soon("the verdict", request.acquire()).await? {
        Err(Error::Deadlock { cycle, .. }) => {
            assert_eq!(cycle.0.len(), 1);
            assert_eq!(cycle.0[0].1, *one.holder());
        }
        other => panic!("waiting for one's own name came to {other:?}"),
    }
    until_waiting(&two, name, 0).await?;
    let request = two.request(name).ttl(LONG).options(LockOptions::new().detect_self_deadlock());
    let mut waiter = Waiter::queue(&one, name, request, 0).await?;
    lease.release().await?;
    waiter.served().await?;
    Ok(())
}
