//! `revoke`: asks holders to give a lock back, and takes it from those who have it at the end.

use leasehold::engine::Query;
use leasehold::{Fence, Name};

use crate::args;
use crate::duration::human;
use crate::exit::{self, Failure, Outcome};
use crate::force_release::report;
use crate::record;
use crate::store::Store;
use crate::take;
use crate::text::escape;

/// Asks for a lock.
pub(crate) async fn revoke(
    order: args::Revoke,
    open: impl AsyncFnOnce() -> Result<Store, Failure>,
) -> Outcome {
    let name = Name::new(&order.name)?;
    if order.reason.trim().is_empty() {
        return Err(Failure::usage("--reason is empty").hint("say why: the holder reads it"));
    }
    let store = open().await?;
    let page = store.client.admin().inspect(&Query::name(name.clone())).await?;
    let held = page.lines.iter().flat_map(|line| &line.held);
    let fences: Vec<Fence> = held.map(|claim| claim.fence).collect();
    let within = human(order.within);
    if !fences.is_empty() {
        store.voice.tell(&format!("asked for `{name}`; it is taken away in {within}"));
    }
    let losers =
        store.client.admin().revoke_fences(&name, &fences, order.within, &order.reason).await?;
    if !losers.is_empty() {
        record::write(&store, &name, &fences, &order.reason).await;
    }
    take::farewell(&store).await;
    if losers.is_empty() && !fences.is_empty() && !store.voice.json {
        store.voice.tell(&format!("`{}` was given back", escape(name.as_str())));
        return Ok(exit::DONE);
    }
    report(&store, &name, &losers, &order.reason)
}
