//! Reads the store for `top`, on a thread of its own: a store that is slow or gone never keeps a
//! key waiting.
//!
//! Work is bounded: at most [`PAGES_MAX`] pages of lines in an interval, and never more time
//! reading than not; the counts, and what is around the chosen name where the lines that were
//! read are not all there are, take a small share of the time. What was read last is kept;
//! nothing queues up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::engine::{LineView, Query, Totals};
use leasehold::{Client, Name};
use tokio::sync::watch;

use super::model::{Reading, Trouble, Wish};
use super::rates::Window;
use crate::exit::{self, Failure};
use crate::text;
use crate::waits;

/// With [`PAGE_LINES`]: more names than anybody scrolls through, and a small part of a second.
const PAGES_MAX: usize = 4;
const PAGE_LINES: usize = 500;

/// Counting looks at every line on some stores; clients tell theirs every ten seconds anyway.
const COUNTS_EVERY: Duration = Duration::from_secs(2);

/// Counting, and following holders, take at most this long, and this part of the time: both look
/// at every line on stores that have no index for it.
const ASIDE_MAX: Duration = Duration::from_secs(2);
const ASIDE_SHARE: u32 = 20;

/// A reading that takes longer counts as failed, and the next one is tried.
const READING_MAX: Duration = Duration::from_secs(15);

/// What was read last, and why it is not newer.
#[derive(Debug, Clone, Default)]
pub(crate) struct News {
    pub(crate) reading: Option<Arc<Reading>>,
    pub(crate) trouble: Option<Trouble>,
}

/// Reads one store again and again.
#[derive(Debug)]
pub(crate) struct Reader {
    client: Client,
    prefix: Option<String>,
    counts: Window,
    totals: Option<Totals>,
    totals_due: Option<Instant>,
    /// What is around the name that was last asked for.
    around: Vec<LineView>,
    around_of: Option<Name>,
    around_due: Option<Instant>,
}

impl Reader {
    pub(crate) fn new(client: Client, prefix: Option<String>) -> Self {
        Self {
            client,
            prefix,
            counts: Window::default(),
            totals: None,
            totals_due: None,
            around: Vec::new(),
            around_of: None,
            around_due: None,
        }
    }

    /// Reads the store once, and what is around the chosen name.
    pub(crate) async fn read(&mut self, chosen: Option<&Name>) -> Result<Reading, String> {
        let read = tokio::time::timeout(READING_MAX, self.read_all(chosen)).await;
        match read {
            Ok(Ok(reading)) => Ok(reading),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_late) => Err("the store does not answer".to_owned()),
        }
    }

    async fn read_all(&mut self, chosen: Option<&Name>) -> leasehold::Result<Reading> {
        let mut query = self.prefix.clone().map_or_else(Query::all, Query::prefix);
        query.limit = PAGE_LINES;
        let mut lines = Vec::new();
        let mut more = false;
        for _ in 0..PAGES_MAX {
            let page = self.client.inspect(&query).await?;
            lines.extend(page.lines);
            more = page.next.is_some();
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
        let around = self.around(&lines, more, chosen).await;
        // With a prefix, what is shown is not what the store counts; how busy it is remains news.
        let totals = self.totals().await?.filter(|_| self.prefix.is_none());
        let (at, rates) = (Instant::now(), self.counts.rates());
        Ok(Reading { at, lines, more, around, totals, rates })
    }

    /// The lines that can be reached from the chosen name, where they are not all read already.
    async fn around(
        &mut self,
        lines: &[LineView],
        more: bool,
        chosen: Option<&Name>,
    ) -> Vec<LineView> {
        let all_read = !more && self.prefix.is_none();
        let line = chosen.and_then(|name| lines.iter().find(|line| line.name == *name));
        let Some(line) = line.filter(|_| !all_read) else { return Vec::new() };
        let fresh = self.around_due.is_some_and(|due| Instant::now() < due);
        if !fresh || self.around_of.as_ref() != chosen {
            let begun = Instant::now();
            // A failure shows at the next page of lines, with its reason.
            self.around = waits::gather(&self.client, line.clone(), ASIDE_MAX).await.lines;
            self.around_of = chosen.cloned();
            self.around_due = Some(Instant::now() + begun.elapsed() * ASIDE_SHARE);
        }
        self.around.clone()
    }

    /// The store's counts, as old as they may be; `None` where they cannot be had in time.
    async fn totals(&mut self) -> leasehold::Result<Option<Totals>> {
        let begun = Instant::now();
        if !self.client.info().can.tally || self.totals_due.is_some_and(|due| begun < due) {
            return Ok(self.totals);
        }
        let counted = tokio::time::timeout(ASIDE_MAX, self.client.store_stats()).await;
        self.totals = counted.ok().transpose()?;
        let now = Instant::now();
        self.totals_due = Some(now + COUNTS_EVERY.max((now - begun) * ASIDE_SHARE));
        if let Some(totals) = self.totals {
            self.counts.add(now, totals.counts);
        }
        Ok(self.totals)
    }

    /// Reads in each interval, and when asked, until nobody wants to know any more.
    async fn follow(
        mut self,
        interval: Duration,
        mut wishes: watch::Receiver<Wish>,
        news: watch::Sender<News>,
    ) {
        loop {
            let mut wish = wishes.borrow_and_update().clone();
            let begun = Instant::now();
            let read = self.read(wish.chosen.as_ref()).await;
            // A store that is slow gets as much rest; one that failed is tried again soon.
            let rest = if read.is_ok() { begun.elapsed() } else { Duration::ZERO };
            publish(&news, read);
            let due = tokio::time::sleep(interval.max(rest));
            tokio::pin!(due);
            loop {
                let changed = tokio::select! {
                    () = &mut due, if !wish.paused => break,
                    changed = wishes.changed() => changed,
                };
                if changed.is_err() {
                    return;
                }
                let next = wishes.borrow_and_update().clone();
                if next.asked != wish.asked || (wish.paused && !next.paused) {
                    break;
                }
                if next.chosen != wish.chosen {
                    self.turn_to(next.chosen.as_ref(), &news).await;
                }
                wish = next;
            }
        }
    }

    /// Reads what is around another name than before, and nothing else.
    async fn turn_to(&mut self, chosen: Option<&Name>, news: &watch::Sender<News>) {
        let Some(last) = news.borrow().reading.clone() else { return };
        let around = self.around(&last.lines, last.more, chosen).await;
        if around.is_empty() {
            return;
        }
        let (lines, totals, rates) = (last.lines.clone(), last.totals, last.rates);
        let reading = Reading { at: last.at, lines, more: last.more, around, totals, rates };
        news.send_modify(|news| news.reading = Some(Arc::new(reading)));
    }
}

/// Tells what was read; the last good reading stays when there is none.
fn publish(news: &watch::Sender<News>, read: Result<Reading, String>) {
    news.send_modify(|news| match read {
        Ok(reading) => *news = News { reading: Some(Arc::new(reading)), trouble: None },
        Err(message) => {
            let since = news.trouble.as_ref().map_or_else(Instant::now, |trouble| trouble.since);
            let message = text::escape(&text::redact(&message));
            news.trouble = Some(Trouble { message, since });
        }
    });
}

/// Starts the thread. It ends when the receiver of wishes has nobody to wish any more.
pub(crate) fn start(
    reader: Reader,
    interval: Duration,
    wishes: watch::Receiver<Wish>,
) -> Result<watch::Receiver<News>, Failure> {
    let (sender, news) = watch::channel(News::default());
    let fail = |error| Failure::new(exit::UNREACHABLE, format!("cannot start: {error}"));
    // Each runtime that uses a store has connections of its own, so the reader may have its own.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(fail)?;
    std::thread::Builder::new()
        .name("leasehold-top".to_owned())
        .spawn(move || runtime.block_on(reader.follow(interval, wishes, sender)))
        .map_err(fail)?;
    Ok(news)
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::memory::Memory;

    async fn client() -> Client {
        Client::builder().engine(Memory::new()).expect("memory always opens")
    }

    #[tokio::test]
    async fn more_names_than_it_reads_are_told() {
        let client = client().await;
        let mut leases = Vec::new();
        for number in 0..PAGES_MAX * PAGE_LINES + 1 {
            let lease = client.mutex(format!("n{number:05}")).lock().await;
            leases.push(lease.expect("free"));
        }
        let mut reader = Reader::new(client.clone(), None);
        let reading = reader.read(None).await.expect("memory answers");
        assert_eq!(reading.totals.map(|totals| totals.active as usize), Some(leases.len()));
        assert_eq!((reading.lines.len(), reading.more), (PAGES_MAX * PAGE_LINES, true));
        let mut reader = Reader::new(client, Some("n0000".to_owned()));
        let reading = reader.read(None).await.expect("memory answers");
        assert_eq!((reading.lines.len(), reading.more), (10, false));
        assert_eq!(reading.totals, None, "the store's count is of other names too");
    }

    #[tokio::test]
    async fn what_is_around_the_chosen_name_is_read_where_a_prefix_hides_it() {
        let engine = Memory::new();
        let holder = Client::builder().label("worker").engine(engine.clone()).expect("opens");
        let other = Client::builder().engine(engine.clone()).expect("opens");
        let _shown = holder.mutex("shown").lock().await.expect("free");
        let _hidden = other.mutex("hidden").lock().await.expect("free");
        let waits = tokio::spawn(async move { holder.mutex("hidden").lock().await.map(drop) });
        let line = async || other.show("hidden").await.expect("memory answers");
        while line().await.is_none_or(|line| line.waiting.is_empty()) {
            tokio::task::yield_now().await;
        }
        let mut reader = Reader::new(other.clone(), Some("shown".to_owned()));
        let chosen = Name::new("shown").expect("a name");
        let reading = reader.read(Some(&chosen)).await.expect("memory answers");
        assert_eq!(reading.lines.len(), 1);
        assert!(reading.around.iter().any(|line| line.name.as_str() == "hidden"));
        waits.abort();
    }

    #[test]
    fn trouble_keeps_the_last_reading_and_since_when_it_is() {
        let (news, _receiver) = watch::channel(News::default());
        let reading = super::super::model::tests::reading(Vec::new());
        news.send_modify(|news| news.reading = Some(reading));
        publish(&news, Err("redis://:secret@h is gone".to_owned()));
        let first = news.borrow().trouble.clone().expect("trouble");
        assert!(!first.message.contains("secret"), "{}", first.message);
        publish(&news, Err("still gone".to_owned()));
        let second = news.borrow().clone();
        assert_eq!(second.trouble.map(|trouble| trouble.since), Some(first.since));
        assert!(second.reading.is_some());
    }
}
