//! `rate`: takes one unit of a rate limit, or prints when the next one is due.

use leasehold::{Name, Unit};
use serde::Serialize;

use crate::acquire::millis;
use crate::args;
use crate::duration::human;
use crate::exit::{self, Failure, Outcome};
use crate::out;
use crate::signals::Signals;
use crate::store::Store;
use crate::take;
use crate::waiting::Waiting;

#[derive(Debug, Serialize)]
struct Asked<'a> {
    name: &'a str,
    taken: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_in_ms: Option<u64>,
}

/// Takes a unit.
pub(crate) async fn rate(
    rate: args::Rate,
    open: impl AsyncFnOnce() -> Result<Store, Failure>,
) -> Outcome {
    let name = Name::new(&rate.name)?;
    // A command that waits in line must leave it when a signal comes.
    let mut signals = Signals::catch()?;
    let store = signals.opened(open).await?;
    let info = store.client.info();
    if !info.can.across_processes {
        return Err(Failure::config(format!("`{}` ends with this process", info.store))
            .hint("use `sqlite:PATH`, or a server"));
    }
    let limiter = store.client.rate_limiter(&name, rate.limit, rate.per);
    let asking = async {
        match rate.wait {
            Some(span) => limiter.acquire_within(span).await,
            None => limiter.try_acquire().await,
        }
    };
    let waiting = Waiting::new(store.voice);
    waiting.turn_to(&name);
    let asked = tokio::select! {
        biased;
        signal = signals.ending(|| waiting.clear()) => {
            waiting.clear();
            return take::interrupted(&store, signal).await;
        }
        asked = asking => asked,
        never = waiting.show(&store.client) => match never {},
    };
    waiting.clear();
    take::farewell(&store).await;
    let due = match asked? {
        Unit::Taken => None,
        Unit::DueIn(due) => Some(due),
    };
    if store.voice.json {
        let (name, taken) = (name.as_str(), due.is_none());
        out::print_json(&Asked { name, taken, due_in_ms: due.map(millis) })?;
    }
    let Some(due) = due else { return Ok(exit::DONE) };
    if !store.voice.json {
        store.voice.tell(&format!("the next unit of `{name}` is due in {}", human(due)));
    }
    Ok(rate.conflict_exit_code)
}
