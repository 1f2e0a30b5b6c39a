//! Tickets: a claim that outlives the calls about it, whichever client makes them.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold::claim::Token;
use leasehold::{Client, Error, Handle, Released, Ticket, TicketState};

use super::harness::{Harness, SPAN};
use super::support::{EVENT_MAX, Failure, Outcome, line, soon, until_free, until_waiting};

super::cases! {
    ticket_of_another_client_continues_the_claim: detach & ttl_per_claim & waits_by_token,
    wait_for_a_ticket_that_ends_in_line_says_so: detach & ttl_per_claim & waits_by_token,
    dropped_wait_of_a_ticket_leaves_its_place: detach & ttl_per_claim & waits_by_token,
    place_of_a_ticket_ends_when_nobody_asks: detach & ttl_per_claim & waits_by_token,
    wait_for_a_ticket_that_was_given_back_never_enters: detach & ttl_per_claim & waits_by_token,
    renewed_handle_of_a_ticket_keeps_the_lease: detach & ttl_per_claim & waits_by_token,
}

async fn ticket(
    lab: &dyn Harness,
    client: &Client,
    name: &str,
    token: Token,
) -> Result<Ticket, Failure> {
    Ok(client.request(name).ttl(lab.long().await?).ticket(token)?)
}

#[track_caller]
fn held(state: TicketState) -> Result<Handle, Failure> {
    match state {
        TicketState::Held { handle, time_left } if !time_left.is_zero() => Ok(handle),
        other => Err(Failure::new(format!("it does not hold: {other:?}"))),
    }
}

async fn ticket_of_another_client_continues_the_claim(lab: Arc<dyn Harness>) -> Outcome {
    let name = "ticket:continued";
    let [holder, one, two] = lab.clients().await?;
    let lease = holder.mutex(name).ttl(lab.long().await?).lock().await?;
    let token = Token::random();
    let (first, second) =
        (ticket(&*lab, &one, name, token).await?, ticket(&*lab, &two, name, token).await?);
    assert_eq!(first.enter().await?, TicketState::Queued { ahead: 1 });
    assert_eq!(first.enter().await?, TicketState::Queued { ahead: 1 }, "it is the same claim");
    assert_eq!(second.wait(Duration::ZERO).await?, TicketState::Queued { ahead: 1 });
    drop(first);
    assert_eq!(line(&holder, name).await?.waiting.len(), 1, "the dropped ticket stays in line");
    let (waited, released) = tokio::join!(second.wait(EVENT_MAX), lease.release());
    assert_eq!(released?, Released::Released);
    let handle = held(waited?)?;
    assert_eq!(line(&holder, name).await?.held[0].fence, handle.fence());
    assert_eq!(one.release(&handle).await?, Released::Released);
    until_free(&holder, name).await
}

async fn wait_for_a_ticket_that_ends_in_line_says_so(lab: Arc<dyn Harness>) -> Outcome {
    let client = lab.client().await?;
    let name = "ticket:ends";
    let holder = client.mutex(name).ttl(lab.long().await?).lock().await?;
    let ticket = ticket(&*lab, &client, name, Token::random()).await?;
    ticket.enter().await?;
    // Longer than a store has for its first answer, so that the last question is asked at the end.
    for millis in [300, 400, 500] {
        let state = ticket.wait(Duration::from_millis(millis)).await?;
        assert_eq!(state, TicketState::Queued { ahead: 1 }, "after {millis} ms");
    }
    ticket.leave().await?;
    holder.release().await?;
    Ok(())
}

async fn dropped_wait_of_a_ticket_leaves_its_place(lab: Arc<dyn Harness>) -> Outcome {
    let name = "ticket:dropped-wait";
    let [holder, client, other] = lab.clients().await?;
    let lease = holder.mutex(name).ttl(lab.long().await?).lock().await?;
    let ticket = ticket(&*lab, &client, name, Token::random()).await?;
    assert_eq!(ticket.enter().await?, TicketState::Queued { ahead: 1 });
    let later = super::support::Waiter::queue(&other, name, other.request(name), 1).await?;
    {
        let mut wait = pin!(ticket.wait(EVENT_MAX));
        tokio::select! {
            ended = &mut wait => panic!("the name is held: {ended:?}"),
            () = tokio::time::sleep(SPAN) => {}
        }
    }
    lease.release().await?;
    let handle = held(soon("the ticket's turn", ticket.wait(EVENT_MAX)).await??)?;
    assert!(later.is_waiting(), "it came later");
    drop(later);
    assert_eq!(ticket.leave().await?, Released::Released);
    let gone = client.renew(&handle).await;
    assert!(matches!(gone, Err(Error::Stale { .. })), "{gone:?}");
    until_free(&holder, name).await
}

async fn place_of_a_ticket_ends_when_nobody_asks(lab: Arc<dyn Harness>) -> Outcome {
    let name = "ticket:silent";
    let [holder, client] = lab.clients().await?;
    let lease = holder.mutex(name).ttl(lab.long().await?).lock().await?;
    let ticket = client.request(name).ttl(lab.brief()).ticket(Token::random())?;
    assert_eq!(ticket.enter().await?, TicketState::Queued { ahead: 1 });
    until_waiting(&holder, name, 0).await?;
    let waited = ticket.wait(EVENT_MAX).await;
    assert!(matches!(waited, Err(Error::Stale { .. })), "{waited:?}");
    assert_eq!(ticket.enter().await?, TicketState::Queued { ahead: 1 }, "it may enter again");
    ticket.leave().await?;
    until_waiting(&holder, name, 0).await?;
    lease.release().await?;
    Ok(())
}

async fn wait_for_a_ticket_that_was_given_back_never_enters(lab: Arc<dyn Harness>) -> Outcome {
    let name = "ticket:given-back";
    let [client, late] = lab.clients().await?;
    let token = Token::random();
    let entered = ticket(&*lab, &client, name, token).await?.enter().await?;
    let handle = held(entered)?;
    assert_eq!(client.release(&handle).await?, Released::Released);
    let waited = ticket(&*lab, &late, name, token).await?.wait(Duration::ZERO).await;
    assert!(matches!(waited, Err(Error::Stale { .. })), "{waited:?}");
    assert!(late.line(name).await?.is_none());
    Ok(())
}

async fn renewed_handle_of_a_ticket_keeps_the_lease(lab: Arc<dyn Harness>) -> Outcome {
    let name = "ticket:renewed";
    let [client, other] = lab.clients().await?;
    let ttl = lab.steady();
    let ticket = client.request(name).ttl(ttl).ticket(Token::random())?;
    let handle = held(ticket.enter().await?)?;
    // Two clients renew, and neither of them adopts the lease.
    for renewing in [&client, &other, &client, &other] {
        tokio::time::sleep(ttl / 3).await;
        let left = renewing.renew(&handle).await?;
        assert!(left > ttl / 3 && left < ttl, "{left:?}");
    }
    assert_eq!(line(&other, name).await?.held[0].fence, handle.fence());
    assert_eq!((client.stats().active, other.stats().active), (0, 0));
    until_free(&other, name).await?;
    let late = other.renew(&handle).await;
    assert!(matches!(late, Err(Error::Stale { .. })), "{late:?}");
    Ok(())
}
