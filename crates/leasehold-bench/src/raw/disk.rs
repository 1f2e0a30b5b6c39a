//! The disk without a store on top: the time to flush a page of a log.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::paced;
use crate::Result;
use crate::stats::Samples;
use crate::work::Work;

const PAGE_BYTES: usize = 8 << 10;
/// As long as a segment of PostgreSQL's log.
const PAGES: u64 = 2_048;

/// How long it takes to write a page over an old one and to flush it.
pub(crate) async fn flush(path: &Path, work: Work) -> Result<Samples> {
    let mut file = File::options().create(true).write(true).truncate(false).open(path)?;
    let page = [1_u8; PAGE_BYTES];
    if file.metadata()?.len() == 0 {
        for _ in 0..PAGES {
            file.write_all(&page)?;
        }
        file.sync_all()?;
    }
    let mut at = 0;
    paced(work, async || {
        file.write_all_at(&page, at % PAGES * PAGE_BYTES as u64)?;
        at += 1;
        Ok(file.sync_data()?)
    })
    .await
}
