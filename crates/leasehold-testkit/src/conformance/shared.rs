//! Readers and writers on one name, in the order they came.

use std::sync::Arc;

use leasehold::claim::Standing;
use leasehold::{Client, Mode, Released, Request, UnlessHeld};

use super::harness::{Harness, LONG};
use super::support::{Outcome, Waiter, claim, line, until};

super::cases! {
    readers_hold_together: shared,
    writer_excludes_readers_and_readers_the_writer: shared,
    queued_writer_stops_later_readers: shared & fifo,
    reader_behind_a_writer_that_followed_a_reader_waits: shared & fifo,
    writer_is_granted_after_the_readers_before_it: shared & fifo,
    waiting_readers_are_granted_together: shared & fifo,
    cancelled_writer_lets_the_readers_behind_it_in: shared & fifo,
    expired_reader_frees_only_its_share: shared & ttl_per_claim,
    readers_have_fences_of_their_own: shared,
}

fn reader(client: &Client, name: &str) -> Request {
    client.request(name).mode(Mode::Shared).ttl(LONG)
}

async fn readers_hold_together(lab: Arc<dyn Harness>) -> Outcome {
    let name = "shared:together";
    let [one, two, three] = lab.clients().await?;
    let first = reader(&one, name).acquire().await?;
    let second = reader(&two, name).try_acquire().await.unless_held()?.expect("readers share");
    let third = reader(&three, name).try_acquire().await.unless_held()?.expect("readers share");
    assert!(first.is_held() && second.is_held() && third.is_held());
    assert_eq!(line(&one, name).await?.held.len(), 3);
    assert_eq!(second.release().await?, Released::Released);
    assert_eq!(line(&one, name).await?.held.len(), 2);
    Ok(())
}

async fn writer_excludes_readers_and_readers_the_writer(lab: Arc<dyn Harness>) -> Outcome {
    let name = "shared:exclude";
    let [one, two] = lab.clients().await?;
    let read = reader(&one, name).acquire().await?;
    assert!(two.request(name).try_acquire().await.unless_held()?.is_none());
    read.release().await?;
    let write =
        two.request(name).ttl(LONG).try_acquire().await.unless_held()?.expect("nobody reads");
    assert!(reader(&one, name).try_acquire().await.unless_held()?.is_none());
    assert!(one.request(name).try_acquire().await.unless_held()?.is_none());
    write.release().await?;
    assert!(reader(&one, name).try_acquire().await.unless_held()?.is_some());
    Ok(())
}

async fn queued_writer_stops_later_readers(lab: Arc<dyn Harness>) -> Outcome {
    let name = "shared:stops";
    let [one, two, three] = lab.clients().await?;
    let read = reader(&one, name).acquire().await?;
    let mut writer = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    assert!(reader(&three, name).try_acquire().await.unless_held()?.is_none(), "a writer waits");
    let mut late = Waiter::queue(&one, name, reader(&three, name), 1).await?;
    read.release().await?;
    let write = writer.granted().await?;
    assert!(late.is_waiting());
    write.release().await?;
    late.served().await?;
    Ok(())
}

async fn reader_behind_a_writer_that_followed_a_reader_waits(lab: Arc<dyn Harness>) -> Outcome {
    let name = "shared:followed";
    let [one, two, three] = lab.clients().await?;
    let read = reader(&one, name).acquire().await?;
    let mut writer = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    let mut late = Waiter::queue(&one, name, reader(&three, name), 1).await?;
    read.release().await?;
    let write = writer.granted().await?;
    // Each claim that leaves makes the store check again which claims hold.
    let leaves = Waiter::queue(&one, name, one.request(name).ttl(LONG), 1).await?;
    drop(leaves);
    until("it has left", async || {
        Ok(one.line(name).await?.is_some_and(|line| line.waiting.len() <= 1))
    })
    .await?;
    assert!(late.is_waiting(), "a reader beside a writer");
    assert_eq!(line(&one, name).await?.held.len(), 1);
    write.release().await?;
    late.served().await?;
    Ok(())
}

async fn writer_is_granted_after_the_readers_before_it(lab: Arc<dyn Harness>) -> Outcome {
    let name = "shared:starve";
    let [one, two, three] = lab.clients().await?;
    let before = [reader(&one, name).acquire().await?, reader(&two, name).acquire().await?];
    let mut writer = Waiter::queue(&one, name, three.request(name).ttl(LONG), 0).await?;
    // Readers come without end, each before the last one has gone.
    let mut stream = Vec::new();
    for index in 0..5 {
        stream.push(Waiter::queue(&one, name, reader(&one, name), index + 1).await?);
    }
    let [first, second] = before;
    first.release().await?;
    assert!(writer.is_waiting(), "one reader is still there");
    second.release().await?;
    let write = writer.granted().await?;
    assert!(stream.iter().all(Waiter::is_waiting));
    write.release().await?;
    for reader in &mut stream {
        reader.served().await?;
    }
    Ok(())
}

async fn waiting_readers_are_granted_together(lab: Arc<dyn Harness>) -> Outcome {
    let name = "shared:batch";
    let [one, two] = lab.clients().await?;
    let write = one.request(name).ttl(LONG).acquire().await?;
    let mut readers = Vec::new();
    for index in 0..4 {
        readers.push(Waiter::queue(&one, name, reader(&two, name), index).await?);
    }
    write.release().await?;
    let mut held = Vec::new();
    for reader in &mut readers {
        held.push(reader.granted().await?);
    }
    assert!(held.iter().all(|lease| lease.is_held()));
    assert!(held.is_sorted_by(|one, next| one.fence() < next.fence()));
    Ok(())
}

async fn cancelled_writer_lets_the_readers_behind_it_in(lab: Arc<dyn Harness>) -> Outcome {
    let name = "shared:cancelled";
    let [one, two, three] = lab.clients().await?;
    let read = reader(&one, name).acquire().await?;
    let writer = Waiter::queue(&one, name, two.request(name).ttl(LONG), 0).await?;
    let mut late = Waiter::queue(&one, name, reader(&three, name), 1).await?;
    drop(writer);
    let lease = late.granted().await?;
    assert!(lease.is_held() && read.is_held());
    Ok(())
}

async fn expired_reader_frees_only_its_share(lab: Arc<dyn Harness>) -> Outcome {
    let name = "shared:expired";
    let [one, two] = lab.clients().await?;
    let engine = lab.engine().await?;
    let dead = claim(name, Mode::Shared, lab.brief())?;
    assert!(matches!(engine.claim(&dead).await?, Standing::Held { .. }));
    let read = reader(&one, name).acquire().await?;
    until("the end of one reader", async || {
        let line = one.line(name).await?;
        Ok(line.is_some_and(|line| line.held.len() == 1))
    })
    .await?;
    assert!(
        two.request(name).try_acquire().await.unless_held()?.is_none(),
        "the other still reads"
    );
    assert!(read.is_held());
    read.release().await?;
    assert!(two.request(name).try_acquire().await.unless_held()?.is_some());
    Ok(())
}

async fn readers_have_fences_of_their_own(lab: Arc<dyn Harness>) -> Outcome {
    let name = "shared:fences";
    let [one, two] = lab.clients().await?;
    let write = one.request(name).ttl(LONG).acquire().await?;
    let mut last = write.fence();
    write.release().await?;
    let mut held = Vec::new();
    for client in [&one, &two, &one] {
        let lease = reader(client, name).acquire().await?;
        assert!(lease.fence() > last, "{} after {last}", lease.fence());
        last = lease.fence();
        held.push(lease);
    }
    Ok(())
}
