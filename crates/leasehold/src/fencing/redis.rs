//! Keys in Redis that are read and written under a fence: check and access in one script.

use redis::aio::ConnectionLike;
use redis::{FromRedisValue, RedisError, Script, ToRedisArgs};

use super::{GuardError, Refused};
use crate::rule::fence::Fence;

type Result<T> = std::result::Result<T, GuardError<RedisError>>;

/// Reads and writes keys under fences. The greatest fence of a key is kept in another key of the
/// same slot, which never expires.
///
/// As durable as the server: with `appendfsync everysec` a crash may lose the fences of the last
/// second together with the values.
///
/// ```no_run
/// # async fn change(mut db: redis::aio::MultiplexedConnection, lease: leasehold::Lease)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::fencing::GuardedRedis;
///
/// let guard = GuardedRedis::new();
/// guard.set(&mut db, "report", "all is well", lease.fence()).await?;
/// let report: String = guard.get(&mut db, "report", lease.fence()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GuardedRedis {
    set: GuardedScript,
    get: GuardedScript,
}

impl Default for GuardedRedis {
    fn default() -> Self {
        Self::new()
    }
}

impl GuardedRedis {
    /// The guard. It keeps no connection.
    pub fn new() -> Self {
        Self {
            set: GuardedScript::new("return redis.call('SET', KEYS[2], ARGV[2])"),
            get: GuardedScript::new("return redis.call('GET', KEYS[2])"),
        }
    }

    /// The key that keeps a resource's greatest fence, in the same slot as the key of that name.
    pub fn fence_key(resource: &str) -> String {
        crate::engines::redis::guard_key(resource)
    }

    /// Sets a key.
    pub async fn set(
        &self,
        db: &mut impl ConnectionLike,
        key: &str,
        value: impl ToRedisArgs,
        fence: impl Into<Fence>,
    ) -> Result<()> {
        self.set.run(db, key, fence, &[key], &[value]).await
    }

    /// Gets a key.
    pub async fn get<T: FromRedisValue>(
        &self,
        db: &mut impl ConnectionLike,
        key: &str,
        fence: impl Into<Fence>,
    ) -> Result<T> {
        self.get.run(db, key, fence, &[key], &[] as &[&str]).await
    }
}

/// A user's script that runs only with a fence that is not old.
///
/// ```
/// use leasehold::fencing::GuardedScript;
///
/// // The first key and the first argument are the guard's.
/// let withdraw = GuardedScript::new("return redis.call('DECRBY', KEYS[2], ARGV[2])");
/// # let _ = withdraw;
/// ```
#[derive(Debug)]
pub struct GuardedScript {
    script: Script,
}

impl GuardedScript {
    /// The check before the user's script, for clients of other languages: `KEYS[1]` is the
    /// [`fence_key`](GuardedRedis::fence_key) of the resource, `ARGV[1]` the fence.
    pub const PRELUDE: &'static str = include_str!("guard.lua");

    /// A script whose own keys begin with `KEYS[2]`, and its arguments with `ARGV[2]`.
    pub fn new(body: &str) -> Self {
        Self { script: Script::new(&format!("{}\n{body}", Self::PRELUDE)) }
    }

    /// Checks the fence for `resource` and runs the script, in one step on the server. In a
    /// Cluster all keys must be of the resource's slot.
    pub async fn run<T: FromRedisValue>(
        &self,
        db: &mut impl ConnectionLike,
        resource: &str,
        fence: impl Into<Fence>,
        keys: &[&str],
        arguments: &[impl ToRedisArgs],
    ) -> Result<T> {
        let fence = fence.into();
        let mut call = self.script.prepare_invoke();
        call.key(GuardedRedis::fence_key(resource));
        for key in keys {
            call.key(*key);
        }
        call.arg(fence.as_u64());
        for argument in arguments {
            call.arg(argument);
        }
        call.invoke_async(db).await.map_err(|error| translate(resource, fence, error))
    }
}

fn translate(resource: &str, given: Fence, error: RedisError) -> GuardError<RedisError> {
    let resource = resource.to_owned();
    match error.code() {
        Some("FENCED") => {
            let highest = error
                .detail()
                .and_then(|detail| detail.rsplit(' ').next()?.parse().ok())
                .map(u64::into);
            match highest {
                Some(highest) => GuardError::Refused(Refused { resource, given, highest }),
                None => GuardError::Store(error),
            }
        }
        Some("UNGUARDED") => {
            let reason = "what is at the key of the fence is no fence";
            GuardError::Unusable { resource, reason }
        }
        _ => GuardError::Store(error),
    }
}
