//! Elections: one leader a term, and observers who never miss the last change.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::stream::{BoxStream, StreamExt};
use leasehold::claim::{Note, Standing};
use leasehold::{Fence, Leader, Mode, Result, UnlessHeld};

use super::harness::{Harness, LONG, SPAN};
use super::support::{Failure, Outcome, claim, held, soon, until, until_waiting};

super::cases! {
    leader_is_seen_with_term_and_payload,
    candidates_lead_in_order_with_rising_terms: fifo,
    proclaimed_payload_reaches_observers: amend,
    observer_sees_the_last_change_of_many,
    observer_sees_a_leader_die: ttl_per_claim,
    f128_evicted_leader_stops_and_campaigns_again: evict,
    f127_paused_leader_is_followed_and_finds_itself_lost: across_processes & ttl_per_claim,
}

type Leaders = BoxStream<'static, Result<Option<Leader>>>;

async fn next(leaders: &mut Leaders) -> std::result::Result<Option<Leader>, Failure> {
    Ok(soon("a change of leader", leaders.next()).await?.expect("a stream without end")?)
}

/// Waits until the observer reports the fact, and skips earlier reports.
async fn observed(leaders: &mut Leaders, fact: impl Fn(&Option<Leader>) -> bool) -> Outcome {
    while !fact(&next(leaders).await?) {}
    Ok(())
}

async fn leader_is_seen_with_term_and_payload(lab: Arc<dyn Harness>) -> Outcome {
    let [one, two] = lab.clients().await?;
    let (here, there) = (one.election("election:seen"), two.election("election:seen"));
    assert_eq!(there.leader().await?, None);
    let leadership = here.ttl(LONG).campaign("10.0.0.1:80").await?;
    let leader = there.leader().await?.expect("somebody leads");
    assert_eq!((leader.term, &leader.holder), (leadership.term(), one.holder()));
    assert_eq!(leader.payload, "10.0.0.1:80");
    let none = there.campaign_within(SPAN, "no").await.unless_held()?;
    assert!(none.is_none() && leadership.is_held());
    until_waiting(&two, "election:seen", 0).await?;
    leadership.resign().await?;
    assert_eq!(there.leader().await?, None);
    Ok(())
}

async fn candidates_lead_in_order_with_rising_terms(lab: Arc<dyn Harness>) -> Outcome {
    let name = "election:order";
    let client = lab.client().await?;
    let first = client.election(name).ttl(LONG).campaign("0").await?;
    let mut last = first.term();
    let mut candidates = Vec::new();
    for index in 1..4 {
        let other = lab.client().await?;
        candidates.push(tokio::spawn(async move {
            let election = other.election(name).ttl(LONG);
            election.campaign(index.to_string()).await
        }));
        until_waiting(&client, name, index).await?;
    }
    first.resign().await?;
    for (index, candidate) in candidates.into_iter().enumerate() {
        let leadership = soon("a term", candidate).await???;
        assert!(leadership.term() > last);
        last = leadership.term();
        let leader = client.election(name).leader().await?.expect("somebody leads");
        assert_eq!((leader.term, leader.payload), (last, (index + 1).to_string()));
        leadership.resign().await?;
    }
    Ok(())
}

async fn proclaimed_payload_reaches_observers(lab: Arc<dyn Harness>) -> Outcome {
    let name = "election:proclaim";
    let [one, two] = lab.clients().await?;
    let mut leaders = two.election(name).observe().await?;
    assert_eq!(next(&mut leaders).await?, None);
    let leadership = one.election(name).ttl(LONG).campaign("a").await?;
    let leader = next(&mut leaders).await?.expect("somebody leads");
    assert_eq!((leader.term, leader.payload.as_str()), (leadership.term(), "a"));
    leadership.proclaim("b").await?;
    let leader = next(&mut leaders).await?.expect("somebody leads");
    assert_eq!((leader.term, leader.payload.as_str()), (leadership.term(), "b"));
    leadership.resign().await?;
    assert_eq!(next(&mut leaders).await?, None);
    Ok(())
}

async fn observer_sees_the_last_change_of_many(lab: Arc<dyn Harness>) -> Outcome {
    let name = "election:last";
    let [one, two, three] = lab.clients().await?;
    let mut leaders = three.election(name).observe().await?;
    let mut last = Fence::from(0);
    for round in 0..20 {
        let client = if round % 2 == 0 { &one } else { &two };
        let leadership = client.election(name).ttl(LONG).campaign(round.to_string()).await?;
        assert!(leadership.term() > last);
        last = leadership.term();
        leadership.resign().await?;
    }
    let leadership = one.election(name).ttl(LONG).campaign("the end").await?;
    observed(&mut leaders, |leader| leader.as_ref().is_some_and(|it| it.payload == "the end"))
        .await?;
    leadership.resign().await?;
    observed(&mut leaders, Option::is_none).await?;
    // A new observer begins with the present leader.
    let mut late = two.election(name).observe().await?;
    assert_eq!(next(&mut late).await?, None);
    Ok(())
}

async fn observer_sees_a_leader_die(lab: Arc<dyn Harness>) -> Outcome {
    let name = "election:dies";
    let client = lab.client().await?;
    let mut leaders = client.election(name).observe().await?;
    assert_eq!(next(&mut leaders).await?, None);
    let engine = lab.engine().await?;
    let mut dead = claim(name, Mode::Exclusive, lab.steady())?;
    dead.note = Note::new("last words")?;
    assert!(matches!(engine.claim(&dead).await?, Standing::Held { .. }));
    let leader = next(&mut leaders).await?.expect("somebody leads");
    assert_eq!(leader.payload, "last words");
    assert_eq!(next(&mut leaders).await?, None, "nobody said a word, and it is seen");
    Ok(())
}

async fn f128_evicted_leader_stops_and_campaigns_again(lab: Arc<dyn Harness>) -> Outcome {
    let name = "election:evicted";
    let [one, admin] = lab.clients().await?;
    let terms = [AtomicU64::new(0), AtomicU64::new(0)];
    let election = one.election(name).ttl(lab.steady());
    let leading = election.run_while_leader("mine", async |leadership| {
        if terms[0].load(Ordering::SeqCst) == 0 {
            terms[0].store(leadership.term().as_u64(), Ordering::SeqCst);
            std::future::pending::<()>().await;
        }
        terms[1].store(leadership.term().as_u64(), Ordering::SeqCst);
    });
    let evicting = async {
        until("a leader", async || Ok(terms[0].load(Ordering::SeqCst) > 0)).await?;
        assert_eq!(admin.admin().force_release(name, "a test").await?.len(), 1);
        Ok::<(), Failure>(())
    };
    let both = soon("the end of the second term", async { tokio::join!(leading, evicting) });
    let (led, evicted) = both.await?;
    led?;
    evicted?;
    let [first, second] = terms.map(AtomicU64::into_inner);
    assert!(second > first, "{second} after {first}");
    Ok(())
}

async fn f127_paused_leader_is_followed_and_finds_itself_lost(lab: Arc<dyn Harness>) -> Outcome {
    let name = "election:paused";
    let client = lab.client().await?;
    let mut leaders = client.election(name).observe().await?;
    let mut worker = lab.process(name, Mode::Exclusive, lab.steady())?;
    let term = held(&mut worker).await?;
    observed(&mut leaders, |leader| leader.as_ref().is_some_and(|leader| leader.term == term))
        .await?;
    worker.stop_process()?;
    // The test asks before the process goes on, so that it answers this first.
    worker.send_line("state")?;
    let election = client.election(name).ttl(LONG);
    let leadership = soon("the next term", election.campaign("next")).await??;
    assert!(leadership.term() > term);
    worker.continue_process()?;
    assert_eq!(worker.wait_for_line("state ", super::support::EVENT_MAX).await?, "Lost");
    let term = leadership.term();
    observed(&mut leaders, |leader| leader.as_ref().is_some_and(|leader| leader.term == term))
        .await?;
    assert!(leadership.is_held());
    leadership.resign().await?;
    Ok(())
}
