//! The pair in etcd: lock a free name and give it back, beside a put and a delete over the same
//! kind of connection. Also with 64 tasks at a time on names of their own.
//!
//! Changes wait for the disk, as they do in production.

use leasehold_testkit::servers::Etcd as Servers;

use crate::Result;
use crate::contender::{Contender, Role};
use crate::progress::Progress;
use crate::raw::etcd::Etcd;
use crate::report::Report;
use crate::scenarios::Setting;
use crate::scenarios::pair::{self, Base, Ours, RELEASED, TASKS, each, rate};

const RAW: &str = "put + delete";
const FLOOR: &str = "put if absent + delete";
/// As long as leasehold's own value.
const VALUE: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

const BASE: Base = Base {
    store: "etcd",
    heading: "pair",
    name: RAW,
    label: RAW,
    most: &[(RELEASED, 1.1)],
    floors: &[(RELEASED, FLOOR)],
};

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let server = Servers::new().fsync(true).start_blocking()?;
    let runtime = &tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(leasehold::connect(server.url()))?;
    let etcd = &runtime.block_on(Etcd::connect(server.url()))?;
    let ours = Ours::new(runtime, &client);
    let mut report = Report::default();

    let pairs = setting.either(50, 100);
    let mut contenders = ours.alone(pairs);
    contenders.push(Contender::new(Role::Limit, RAW, move || {
        runtime.block_on(each(pairs, async || put_and_delete(etcd, "raw").await))
    }));
    contenders.push(Contender::new(Role::Limit, FLOOR, move || {
        runtime.block_on(each(pairs, async || {
            etcd.put_if_absent("floor", VALUE).await?;
            etcd.delete("floor").await
        }))
    }));
    pair::alone(contenders, setting.either(5, 80), &BASE, (&mut *progress, &mut report))?;

    let pairs = setting.either(10, 50);
    let keys: Vec<String> = (0..TASKS).map(|task| format!("raw:{task}")).collect();
    let raw = Contender::new(Role::Limit, RAW, move || {
        runtime.block_on(rate(pairs, async |task| put_and_delete(etcd, &keys[task]).await))
    });
    let (rounds, least) = (setting.either(5, 20), (BASE.store, 0.8));
    pair::together(vec![ours.together(pairs), raw], rounds, least, (progress, &mut report))?;
    Ok(report)
}

async fn put_and_delete(etcd: &Etcd, key: &str) -> Result<()> {
    etcd.put(key, VALUE).await?;
    etcd.delete(key).await
}
