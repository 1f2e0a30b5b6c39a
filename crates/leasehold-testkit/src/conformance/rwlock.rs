//! The read/write lock and the semaphore as users have them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::error::Invalid;
use leasehold::{Error, Mode, Released, UnlessHeld};

use super::harness::{Harness, LONG, SPAN};
use super::support::{Outcome, Waiter, held, line, soon, until, until_waiting};

super::cases! {
    f118_writer_is_not_starved_by_endless_overlapping_readers: shared & fifo,
    f120_killed_reader_frees_only_its_share_of_an_rwlock:
        shared & across_processes & ttl_per_claim,
    f121_killed_permit_holder_gives_its_permits_back_and_nobody_elses:
        permits & across_processes & ttl_per_claim,
    f122_waiter_for_many_permits_is_woken_when_enough_are_free: permits & fifo,
    rwlock_refuses_without_waiting: shared,
    semaphore_refuses_without_waiting: permits,
    permits_that_cannot_be_are_refused_before_anything_is_sent: permits,
}

async fn f118_writer_is_not_starved_by_endless_overlapping_readers(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let name = "rwlock:starve";
    let [one, two] = lab.clients().await?;
    let done = Arc::new(AtomicBool::new(false));
    let first = one.rwlock(name).ttl(LONG).read().await?;
    let mut readers = Vec::new();
    for _ in 0..3 {
        let (client, done) = (lab.client().await?, Arc::clone(&done));
        readers.push(tokio::spawn(async move {
            // Each reader takes its next share before it gives the last one back, if it can.
            let lock = client.rwlock(name).ttl(LONG);
            let mut last = None;
            while !done.load(Ordering::SeqCst) {
                match lock.try_read().await.unless_held()? {
                    Some(lease) => last = Some(lease),
                    None => last = None,
                }
                tokio::task::yield_now().await;
            }
            drop(last);
            client.close().await
        }));
    }
    until("overlapping readers", async || {
        Ok(one.line(name).await?.is_some_and(|line| line.held.len() > 2))
    })
    .await?;
    let writer = tokio::spawn(async move { two.rwlock(name).ttl(LONG).write().await });
    until_waiting(&one, name, 1).await?;
    first.release().await?;
    let writer = soon("the writer", writer).await???;
    assert_eq!(line(&one, name).await?.held[0].fence, writer.fence());
    done.store(true, Ordering::SeqCst);
    writer.release().await?;
    for reader in readers {
        soon("the end of a reader", reader).await???;
    }
    Ok(())
}

async fn f120_killed_reader_frees_only_its_share_of_an_rwlock(lab: Arc<dyn Harness>) -> Outcome {
    let name = "rwlock:killed";
    let [one, two] = lab.clients().await?;
    let mine = one.rwlock(name).ttl(LONG).read().await?;
    let mut worker = lab.process(name, Mode::Shared, lab.steady())?;
    held(&mut worker).await?;
    worker.kill()?;
    until("one reader", async || Ok(line_len(&one, name).await? == 1)).await?;
    assert!(two.rwlock(name).try_write().await.unless_held()?.is_none(), "the other one reads on");
    mine.release().await?;
    let writer = two.rwlock(name).ttl(LONG).write().await?;
    assert_eq!(writer.release().await?, Released::Released);
    Ok(())
}

async fn line_len(client: &leasehold::Client, name: &str) -> leasehold::Result<usize> {
    Ok(client.line(name).await?.map_or(0, |line| line.held.len()))
}

async fn f121_killed_permit_holder_gives_its_permits_back_and_nobody_elses(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let name = "rwlock:permits-killed";
    let [one, two] = lab.clients().await?;
    let permits = two.semaphore(name, 3).ttl(LONG);
    let mine = one.semaphore(name, 3).ttl(LONG).acquire().await?;
    let mut worker = lab.process(name, Mode::Permits { take: 2, of: 3 }, lab.steady())?;
    held(&mut worker).await?;
    assert!(permits.try_acquire().await.unless_held()?.is_none());
    worker.kill()?;
    let back = soon("the dead one's permits", permits.acquire_many(2)).await??;
    assert!(permits.try_acquire().await.unless_held()?.is_none(), "never more than three");
    assert!(mine.is_held() && back.is_held());
    Ok(())
}

async fn f122_waiter_for_many_permits_is_woken_when_enough_are_free(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let name = "rwlock:many";
    let [one, two, three] = lab.clients().await?;
    let permits = one.semaphore(name, 4).ttl(LONG);
    let mut taken = Vec::new();
    for _ in 0..4 {
        taken.push(permits.acquire().await?);
    }
    let want = |client: &leasehold::Client| {
        client.request(name).mode(Mode::Permits { take: 3, of: 4 }).ttl(LONG)
    };
    let mut first = Waiter::queue(&one, name, want(&two), 0).await?;
    let mut second = Waiter::queue(&one, name, want(&three), 1).await?;
    for _ in 0..2 {
        taken.pop().expect("four were taken").release().await?;
        assert!(first.is_waiting() && second.is_waiting());
    }
    taken.pop().expect("four were taken").release().await?;
    let first = first.granted().await?;
    assert!(second.is_waiting());
    taken.pop().expect("four were taken").release().await?;
    first.release().await?;
    second.served().await
}

async fn rwlock_refuses_without_waiting(lab: Arc<dyn Harness>) -> Outcome {
    let name = "rwlock:refuses";
    let [one, two] = lab.clients().await?;
    let writer = one.rwlock(name).ttl(LONG).note("writes").write().await?;
    let lock = two.rwlock(name);
    assert!(
        lock.try_read().await.unless_held()?.is_none()
            && lock.try_write().await.unless_held()?.is_none()
    );
    assert!(lock.read_within(SPAN).await.unless_held()?.is_none());
    assert!(lock.write_within(SPAN).await.unless_held()?.is_none());
    until_waiting(&one, name, 0).await?;
    assert_eq!(line(&two, name).await?.held[0].note.as_str(), "writes");
    assert_eq!(writer.release().await?, Released::Released);
    let reader = lock.ttl(LONG).read_within(LONG).await.unless_held()?.expect("it is free");
    assert_eq!(reader.release().await?, Released::Released);
    Ok(())
}

async fn semaphore_refuses_without_waiting(lab: Arc<dyn Harness>) -> Outcome {
    let name = "rwlock:permits";
    let [one, two] = lab.clients().await?;
    let lease = one.semaphore(name, 3).ttl(LONG).acquire_many(2).await?;
    let permits = two.semaphore(name, 3).ttl(LONG);
    assert_eq!(permits.limit(), 3);
    assert!(permits.try_acquire_many(2).await.unless_held()?.is_none());
    assert!(permits.acquire_many_within(2, SPAN).await.unless_held()?.is_none());
    until_waiting(&one, name, 0).await?;
    let second = permits.acquire_within(LONG).await.unless_held()?.expect("one is free");
    assert!(second.fence() > lease.fence());
    Ok(())
}

async fn permits_that_cannot_be_are_refused_before_anything_is_sent(
    lab: Arc<dyn Harness>,
) -> Outcome {
    let name = "rwlock:bad";
    let client = lab.client().await?;
    for (take, of) in [(0, 3), (4, 3), (0, 0), (1, 0), (1, u32::MAX)] {
        let refused = client.semaphore(name, of).try_acquire_many(take).await.unless_held();
        assert!(
            matches!(refused, Err(Error::Invalid(Invalid::Permits { .. }))),
            "{take} of {of}: {refused:?}"
        );
    }
    assert!(client.line(name).await?.is_none(), "nobody is in line");
    // The same name as a lock and as a semaphore at once: the first to come decides.
    let lock = client.mutex(name).ttl(LONG).lock().await?;
    let refused = client.semaphore(name, 3).acquire().await;
    assert!(matches!(refused, Err(Error::Mismatch { .. })), "{refused:?}");
    assert_eq!(line(&client, name).await?.held.len(), 1);
    lock.release().await?;
    let permit = client.semaphore(name, 3).ttl(LONG).acquire().await?;
    for refused in [
        client.mutex(name).lock().await,
        client.mutex(name).try_lock().await.unless_held().map(|_| panic!("a lock beside a permit")),
    ] {
        assert!(matches!(refused, Err(Error::Mismatch { .. })), "{refused:?}");
    }
    assert!(permit.is_held());
    Ok(())
}
