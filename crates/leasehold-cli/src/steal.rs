//! `steal`: takes a lock from those who hold it, before those who wait, and prints its handle.

use leasehold::engine::need;
use leasehold::error::Kind;
use leasehold::{Fence, Lease, Name};

use crate::acquire;
use crate::args;
use crate::exit::{self, Failure, Outcome};
use crate::force_release::{check_order, confirm, in_the_way};
use crate::record;
use crate::store::Store;
use crate::take::{self, Plan, Wait};

/// Takes the lock, and detaches the lease without giving it back.
pub(crate) async fn steal(
    order: args::Steal,
    open: impl AsyncFnOnce() -> Result<Store, Failure>,
) -> Outcome {
    let name = Name::new(&order.name)?;
    let plan = Plan::new(args::Take::exclusive(order.name, order.ttl, order.note), Wait::No)?;
    check_order(&order.reason, order.yes)?;
    let store = open().await?;
    let outcome = match take_away(&store, &plan, &name, (&order.reason, order.yes)).await {
        Ok(Some(lease)) => acquire::hand_over(&store, &plan, vec![lease]).await,
        Ok(None) => {
            store.voice.tell("nothing was done");
            Ok(exit::DECLINED)
        }
        Err(failure) => Err(failure),
    };
    take::farewell(&store).await;
    outcome
}

/// Takes the lock; `None` if the user is asked and declines.
async fn take_away(
    store: &Store,
    plan: &Plan,
    name: &Name,
    (reason, yes): (&str, bool),
) -> Result<Option<Lease>, Failure> {
    acquire::check(store, plan).await?;
    let client = &store.client;
    need(&client.parts().steal, client.info())?;
    // Nobody loses a semaphore: the order is refused.
    let line = client.line(name.as_str()).await?.filter(|line| line.kind == Kind::Lock);
    let held = line.map(|line| line.held).unwrap_or_default();
    let question: Vec<String> = held.iter().map(|claim| in_the_way(name, claim)).collect();
    if !yes && !question.is_empty() && !confirm(&question)? {
        return Ok(None);
    }
    let fences: Vec<Fence> = held.iter().map(|claim| claim.fence).collect();
    if !fences.is_empty() {
        record::write(store, name, &fences, reason).await;
    }
    Ok(Some(client.admin().steal_with(name, reason, plan.options()).await?))
}
