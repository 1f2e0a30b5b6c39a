//! A process that forks: its child leaves alone what the parent holds.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{Mode, UnlessHeld};

use super::harness::Harness;
use super::support::{EVENT_MAX, Outcome, ended, held, line, state, until};

super::cases! {
    forked_child_leaves_the_lease_of_its_parent: across_processes & ttl_per_claim,
}

async fn forked_child_leaves_the_lease_of_its_parent(lab: Arc<dyn Harness>) -> Outcome {
    let name = "fork:held";
    let client = lab.client().await?;
    let mut worker = lab.process(name, Mode::Exclusive, lab.steady())?;
    let fence = held(&mut worker).await?;
    worker.send_line("fork")?;
    let child = worker.wait_for_line("forked ", EVENT_MAX).await?;
    assert_eq!(child, "0", "what the child found wrong: {}", worker.stderr());
    assert_eq!(line(&client, name).await?.held[0].fence, fence, "the child has ended");
    assert!(client.mutex(name).try_lock().await.unless_held()?.is_none());
    // Nobody but the parent can make the rest of its time longer again.
    let least = Cell::new(Duration::MAX);
    until("a renewal by the parent", async || {
        let line = client.line(name).await?;
        let held = line.and_then(|line| line.held.into_iter().next());
        let left = held.filter(|held| held.fence == fence).map(|held| held.remaining);
        let left = left.unwrap_or_default();
        least.set(least.get().min(left));
        Ok(left > least.get())
    })
    .await?;
    assert_eq!(state(&mut worker).await?, "Held");
    worker.send_line("release")?;
    assert_eq!(worker.wait_for_line("released ", EVENT_MAX).await?, "Released");
    ended(&mut worker).await
}
