//! The pair in Redis: lock a free name and give it back. Beside it, two bare round trips over the
//! same kind of connection, and the usual commands of a hand-written lock. The floor is a script
//! that does nothing, with keys and arguments like those of a lock. A lock with a fence and a line
//! needs several commands in one step, and so a script.
//!
//! Also with 64 tasks at a time on names of their own. Then the one thread of the server and that
//! of the client are the limit, not the round trip.

use std::sync::LazyLock;

use leasehold_testkit::servers::Redis;
use redis::Script;
use redis::aio::MultiplexedConnection;

use crate::Result;
use crate::contender::{Contender, Role};
use crate::progress::Progress;
use crate::report::Report;
use crate::scenarios::Setting;
use crate::scenarios::pair::{self, Base, DROPPED, Ours, RELEASED, TASKS, each, rate};

const BARE: &str = "two bare round trips (PING)";
const RAW: &str = "SET NX PX + DEL";
const BY_HAND: &str = "SET NX PX + script that compares and deletes";

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

static NOTHING: LazyLock<Script> = LazyLock::new(|| Script::new("return 1"));
static COMPARE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then \
         return redis.call('DEL', KEYS[1]) else return 0 end",
    )
});

const ONE_EMPTY: &str = "a script that does nothing";
const TWO_EMPTY: &str = "two scripts that do nothing";

const BASE: Base = Base {
    store: "Redis",
    heading: "pair",
    name: BARE,
    label: "two bare round trips",
    most: &[(RELEASED, 1.15), (DROPPED, 0.6)],
    floors: &[(RELEASED, TWO_EMPTY), (DROPPED, ONE_EMPTY)],
};

pub(crate) fn run(setting: &Setting, progress: &mut Progress) -> Result<Report> {
    let server = Redis::new().start_blocking()?;
    let runtime = &tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(leasehold::connect(server.url()))?;
    let bare = redis::Client::open(server.url())?;
    let bare = &runtime.block_on(bare.get_multiplexed_async_connection())?;
    let ours = Ours::new(runtime, &client);
    let mut report = Report::default();

    let pairs = setting.either(200, 500);
    let mut contenders = ours.alone(pairs);
    contenders.extend([
        Contender::new(Role::Limit, BARE, move || {
            runtime.block_on(each(pairs, async || ping_twice(bare.clone()).await))
        }),
        Contender::new(Role::Limit, RAW, move || {
            runtime.block_on(each(pairs, async || set_and_delete(bare.clone(), "raw").await))
        }),
        Contender::new(Role::Limit, ONE_EMPTY, move || {
            runtime.block_on(each(pairs, async || nothing(bare.clone(), "raw", "claim").await))
        }),
        Contender::new(Role::Limit, TWO_EMPTY, move || {
            runtime.block_on(each(pairs, async || nothing_twice(bare.clone(), "raw").await))
        }),
        Contender::new(Role::Rival, BY_HAND, move || {
            runtime.block_on(each(pairs, async || by_hand(bare.clone(), "by hand").await))
        }),
    ]);
    pair::alone(contenders, setting.either(10, 40), &BASE, (&mut *progress, &mut report))?;

    let pairs = setting.either(20, 100);
    let keys: Vec<String> = (0..TASKS).map(|task| format!("raw:{task}")).collect();
    let keys = &keys;
    let contenders = vec![
        ours.together(pairs),
        Contender::new(Role::Rival, BY_HAND, move || {
            runtime.block_on(rate(pairs, async |task| by_hand(bare.clone(), &keys[task]).await))
        }),
        Contender::new(Role::Limit, TWO_EMPTY, move || {
            let pair = async |task: usize| nothing_twice(bare.clone(), &keys[task]).await;
            runtime.block_on(rate(pairs, pair))
        }),
        Contender::new(Role::Limit, RAW, move || {
            let pair = async |task: usize| set_and_delete(bare.clone(), &keys[task]).await;
            runtime.block_on(rate(pairs, pair))
        }),
    ];
    let (rounds, least) = (setting.either(10, 30), (BASE.store, 0.9));
    pair::together(contenders, rounds, least, (progress, &mut report))?;
    Ok(report)
}

async fn ping_twice(mut bare: MultiplexedConnection) -> Result<()> {
    for _ in 0..2 {
        redis::cmd("PING").exec_async(&mut bare).await?;
    }
    Ok(())
}

async fn set_and_delete(mut bare: MultiplexedConnection, key: &str) -> Result<()> {
    let mut set = redis::cmd("SET");
    set.arg(key).arg(TOKEN).arg("NX").arg("PX").arg(30_000);
    set.exec_async(&mut bare).await?;
    Ok(redis::cmd("DEL").arg(key).exec_async(&mut bare).await?)
}

/// A script that does nothing, with as much text as a claim or a release has.
async fn nothing(mut bare: MultiplexedConnection, key: &str, what: &str) -> Result<()> {
    let mut call = NOTHING.key(key);
    for companion in ["line", "order", "expiry", "fence"] {
        call.key(format!("leasehold:{companion}:{{{key}}}"));
    }
    call.arg("leasehold:events").arg(TOKEN);
    if what == "claim" {
        call.arg(30_000).arg(90_000).arg([TOKEN, TOKEN, TOKEN, "host:1234:0123"].concat());
        call.arg("x 4294967295 4294967295 30000 join");
    }
    Ok(call.invoke_async(&mut bare).await?)
}

async fn nothing_twice(bare: MultiplexedConnection, key: &str) -> Result<()> {
    nothing(bare.clone(), key, "claim").await?;
    nothing(bare, key, "release").await
}

async fn by_hand(mut bare: MultiplexedConnection, key: &str) -> Result<()> {
    let token = TOKEN;
    let mut set = redis::cmd("SET");
    set.arg(key).arg(token).arg("NX").arg("PX").arg(30_000).exec_async(&mut bare).await?;
    Ok(COMPARE.key(key).arg(token).invoke_async(&mut bare).await?)
}
