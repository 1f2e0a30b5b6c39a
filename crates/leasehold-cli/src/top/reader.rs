//! Reads the store for `top`, on a thread of its own. So a slow or lost store never delays a key.
//!
//! The work is bounded. The reader reads at most [`PAGES_MAX`] pages of lines in an interval, and
//! rests at least as long as it reads. The counts take a small share of the time. So do the lines
//! around the chosen name, which it reads only if it has not read all lines. It keeps the last
//! reading; nothing queues up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::engine::{LineView, Query, Totals};
use leasehold::{Client, Name};
use tokio::sync::watch;

use super::model::{Reading, Trouble, Wish};
use super::rates::Window;
use crate::exit::{self, Failure};
use crate::lines;
use crate::text;
use crate::waits;

/// With [`PAGE_LINES`]: more names than a person scrolls through, read in much less than a second.
const PAGES_MAX: usize = 4;
const PAGE_LINES: usize = 500;

/// Counting reads every line on some stores. Clients report their counts every ten seconds anyway.
const COUNTS_EVERY: Duration = Duration::from_secs(2);

/// Counting takes at most this long, and this share of the time. So does following holders. Both
/// read every line on stores without an index.
const ASIDE_MAX: Duration = Duration::from_secs(2);
const ASIDE_SHARE: u32 = 20;

/// A reading that takes longer counts as failed, and the next one is tried.
const READING_MAX: Duration = Duration::from_secs(15);

/// The last reading, and the failure of a later one.
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
    /// The lines around the last chosen name.
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

    /// Reads the store once, with the lines around the chosen name.
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
        let (mut lines, mut broken) = (Vec::new(), Vec::new());
        let mut more = false;
        for _ in 0..PAGES_MAX {
            let page = self.client.admin().inspect(&query).await?;
            lines.extend(page.lines.into_iter().filter(|line| !lines::is_record(line)));
            broken.extend(page.broken);
            more = page.next.is_some();
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
        let around = self.around(&lines, more, chosen).await;
        // With a prefix the store's totals count other names too. The rates are still useful.
        let totals = self.totals().await?.filter(|_| self.prefix.is_none());
        let (at, rates) = (Instant::now(), self.counts.rates());
        Ok(Reading { at, lines, broken, more, around, totals, rates })
    }

    /// The lines that can be reached from the chosen name, unless all lines were read already.
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
            // The next page of lines will show a failure with its reason.
            self.around = waits::gather(&self.client, line.clone(), ASIDE_MAX).await.lines;
            self.around_of = chosen.cloned();
            self.around_due = Some(Instant::now() + begun.elapsed() * ASIDE_SHARE);
        }
        self.around.clone()
    }

    /// The store's counts, which may be a little old; `None` if the store was too slow.
    async fn totals(&mut self) -> leasehold::Result<Option<Totals>> {
        let begun = Instant::now();
        if self.client.parts().counting.is_none() || self.totals_due.is_some_and(|due| begun < due)
        {
            return Ok(self.totals);
        }
        let counted = tokio::time::timeout(ASIDE_MAX, self.client.admin().store_stats()).await;
        self.totals = counted.ok().transpose()?;
        let now = Instant::now();
        self.totals_due = Some(now + COUNTS_EVERY.max((now - begun) * ASIDE_SHARE));
        if let Some(totals) = self.totals {
            self.counts.add(now, totals.counts);
        }
        Ok(self.totals)
    }

    /// Reads in each interval, and when asked, until the view is gone.
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
            // Rests as long as the reading took. After a failure, tries again soon.
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

    /// Reads only the lines around another chosen name.
    async fn turn_to(&mut self, chosen: Option<&Name>, news: &watch::Sender<News>) {
        let Some(last) = news.borrow().reading.clone() else { return };
        let around = self.around(&last.lines, last.more, chosen).await;
        if around.is_empty() {
            return;
        }
        let (lines, broken) = (last.lines.clone(), last.broken.clone());
        let (at, more, totals, rates) = (last.at, last.more, last.totals, last.rates);
        let reading = Reading { at, lines, broken, more, around, totals, rates };
        news.send_modify(|news| news.reading = Some(Arc::new(reading)));
    }
}

/// Publishes a reading, or a failure beside the last good reading.
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

/// Starts the thread. It ends when the sender of wishes is dropped.
pub(crate) fn start(
    reader: Reader,
    interval: Duration,
    wishes: watch::Receiver<Wish>,
) -> Result<watch::Receiver<News>, Failure> {
    let (sender, news) = watch::channel(News::default());
    let fail = |error| Failure::new(exit::UNREACHABLE, format!("cannot start: {error}"));
    // Each runtime that uses a store has its own connections, so the reader may have a runtime.
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
    async fn lines_around_the_chosen_name_are_read_although_a_prefix_hides_them() {
        let engine = Memory::new();
        let holder = Client::builder().label("worker").engine(engine.clone()).expect("opens");
        let other = Client::builder().engine(engine.clone()).expect("opens");
        let _shown = holder.mutex("shown").lock().await.expect("free");
        let _hidden = other.mutex("hidden").lock().await.expect("free");
        let waits = tokio::spawn(async move { holder.mutex("hidden").lock().await.map(drop) });
        let line = async || other.line("hidden").await.expect("memory answers");
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
