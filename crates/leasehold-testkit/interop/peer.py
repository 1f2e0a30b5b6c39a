"""Takes and gives back locks with Python packages that people run, for tests beside leasehold.

    python peer.py KIND [URL]

URL may stand in LEASEHOLD_PEER_URL instead, where other users of the machine do not see a password.

Says `ready` when it has reached the server, then answers each line with one line:

    try NAME TTL_MS           held | busy
    lock NAME TTL_MS WAIT_MS  held | timeout
    release NAME              released | gone
    extend NAME TTL_MS        extended | gone
    write NODE                written | refused    (only on ZooKeeper)
    seal NODE                 sealed | refused     (the same: from now on all may only read it)
    take NAME                 held | busy          (only psycopg and asyncpg: defaults for all else)
    keep NAME                 extended | gone      (the same)
    mark NAME JSON            held | busy          (the same, with metadata)
    see NAME                  HOLDER SECONDS JSON | free    (the same, from the view)

`gone` is the answer for a lock that ended, that somebody else has, or that was never taken. What
cannot be done is answered with `error` and the reason.

The kinds, and where each keeps the lock of NAME:

    redis-py           the Redis key NAME
    redis-py-asyncio   the same, with the package's asyncio half
    python-redis-lock  the Redis key lock:NAME, and the list lock-signal:NAME to wake waiters;
                       ttl and waits are whole seconds, rounded up
    psycopg            the functions of leasehold's own store in PostgreSQL, as an application calls
                       them from a transaction of its own
    asyncpg            the same, in autocommit
    psycopg-advisory   a session's advisory lock on the key that django-pglock makes of NAME; it lasts
                       as long as the connection, without ttl
    kazoo              below the ZooKeeper node /NAME; it lasts as long as the session, without ttl
    kazoo-read         the same, with the package's `ReadLock`
    kazoo-write        the same, with its `WriteLock`

No lock is renewed: it ends with its ttl, as it does for who holds one for too long.
"""

import asyncio
import hashlib
import json
import math
import os
import sys
import time


class RedisPy:
    """`redis.lock.Lock`."""

    def __init__(self, url):
        import redis

        self.errors = redis.exceptions
        self.client = redis.Redis.from_url(url)
        self.client.ping()
        self.locks = {}

    def run(self, result):
        """What the package's methods return is the result itself."""
        return result

    def take(self, name, ttl_ms, **how):
        lock = self.client.lock(name, timeout=ttl_ms / 1000, thread_local=False)
        held = self.run(lock.acquire(**how))
        if held:
            self.locks[name] = lock
        return held

    def try_lock(self, name, ttl_ms):
        return self.take(name, ttl_ms, blocking=False)

    def lock(self, name, ttl_ms, wait_ms):
        return self.take(name, ttl_ms, blocking=True, blocking_timeout=wait_ms / 1000)

    def release(self, name):
        lock = self.locks.pop(name, None)
        return self.owned(lock, lambda: lock.release())

    def extend(self, name, ttl_ms):
        lock = self.locks.get(name)
        return self.owned(lock, lambda: lock.extend(ttl_ms / 1000, replace_ttl=True))

    def owned(self, lock, act):
        if lock is None:
            return False
        try:
            self.run(act())
        except self.errors.LockNotOwnedError:
            return False
        return True


class RedisPyAsyncio(RedisPy):
    """`redis.asyncio.lock.Lock`."""

    def __init__(self, url):
        import redis.asyncio

        self.errors = redis.exceptions
        self.loop = asyncio.new_event_loop()
        self.client = redis.asyncio.Redis.from_url(url)
        self.run(self.client.ping())
        self.locks = {}

    def run(self, result):
        """What the package's methods return is to be awaited."""
        return self.loop.run_until_complete(result)


class PythonRedisLock:
    """`redis_lock.Lock`."""

    def __init__(self, url):
        import redis
        import redis_lock

        self.package = redis_lock
        self.client = redis.StrictRedis.from_url(url)
        self.client.ping()
        self.locks = {}

    def try_lock(self, name, ttl_ms):
        lock = self.package.Lock(self.client, name, expire=seconds(ttl_ms))
        return self.took(name, lock, lock.acquire(blocking=False))

    def lock(self, name, ttl_ms, wait_ms):
        expire = seconds(ttl_ms)
        lock = self.package.Lock(self.client, name, expire=expire)
        end = time.monotonic() + wait_ms / 1000
        while True:
            # The package refuses to wait for longer than the lock would last.
            left_ms = max(0, end - time.monotonic()) * 1000
            if self.took(name, lock, lock.acquire(timeout=min(seconds(left_ms), expire))):
                return True
            if time.monotonic() >= end:
                return False

    def took(self, name, lock, held):
        if held:
            self.locks[name] = lock
        return held

    def release(self, name):
        lock = self.locks.pop(name, None)
        return self.owned(lock, lambda: lock.release())

    def extend(self, name, ttl_ms):
        lock = self.locks.get(name)
        return self.owned(lock, lambda: lock.extend(expire=seconds(ttl_ms)))

    def owned(self, lock, act):
        if lock is None:
            return False
        try:
            act()
        except self.package.NotAcquired:
            return False
        return True


class Psycopg:
    """`acquire_lock` and its kin in leasehold's schema, each in a transaction of the caller's."""

    def __init__(self, url):
        import psycopg

        self.connection = psycopg.connect(url)
        self.holder = f"psycopg:{os.getpid()}"

    def call(self, statement, *values):
        with self.connection.transaction():
            return self.connection.execute(statement, values).fetchone()[0]

    def try_lock(self, name, ttl_ms):
        return self.call(
            "SELECT leasehold.acquire_lock(%s, %s, %s, %s::jsonb)",
            name,
            self.holder,
            ttl_ms / 1000,
            '{"by": "a test"}',
        )

    def lock(self, name, ttl_ms, wait_ms):
        end = time.monotonic() + wait_ms / 1000
        while not self.try_lock(name, ttl_ms):
            if time.monotonic() >= end:
                return False
            time.sleep(0.02)
        return True

    def release(self, name):
        return self.call("SELECT leasehold.release_lock(%s, %s)", name, self.holder)

    def extend(self, name, ttl_ms):
        return self.call(
            "SELECT leasehold.extend_lock(%s, %s, %s)", name, self.holder, ttl_ms / 1000
        )


    def take(self, name):
        return self.call("SELECT leasehold.acquire_lock(%s, %s)", name, self.holder)

    def keep(self, name):
        return self.call("SELECT leasehold.extend_lock(%s, %s)", name, self.holder)

    def mark(self, name, metadata):
        from psycopg.types.json import Jsonb

        return self.call(
            "SELECT leasehold.acquire_lock(%s, %s, p_metadata => %s)",
            name,
            self.holder,
            Jsonb(metadata),
        )

    def see(self, name):
        """Who has a lock, for how many seconds in all, and what was said with it."""
        with self.connection.transaction():
            row = self.connection.execute(
                "SELECT holder_id, acquired_at, expires_at, metadata"
                " FROM leasehold.distributed_locks WHERE lock_name = %s",
                (name,),
            ).fetchone()
        if row is None:
            return None
        holder, acquired_at, expires_at, metadata = row
        return holder, (expires_at - acquired_at).total_seconds(), metadata


class Asyncpg(Psycopg):
    """The same with asyncpg, in autocommit."""

    def __init__(self, url):
        import asyncpg

        self.loop = asyncio.new_event_loop()
        self.connection = self.loop.run_until_complete(asyncpg.connect(url))
        self.holder = f"asyncpg:{os.getpid()}"

    def call(self, statement, *values):
        for place in range(1, len(values) + 1):
            statement = statement.replace("%s", f"${place}", 1)
        return self.loop.run_until_complete(self.connection.fetchval(statement, *values))

    def mark(self, name, metadata):
        return self.call(
            "SELECT leasehold.acquire_lock(%s, %s, p_metadata => %s)",
            name,
            self.holder,
            json.dumps(metadata),
        )

    def see(self, name):
        row = self.loop.run_until_complete(
            self.connection.fetchrow(
                "SELECT * FROM leasehold.distributed_locks WHERE lock_name = $1", name
            )
        )
        if row is None:
            return None
        span = row["expires_at"] - row["acquired_at"]
        return row["holder_id"], span.total_seconds(), json.loads(row["metadata"])


class PsycopgAdvisory:
    """`pg_advisory_lock` on the key that django-pglock makes of a name."""

    def __init__(self, url):
        import psycopg

        self.timeout = psycopg.errors.LockNotAvailable
        self.connection = psycopg.connect(url, autocommit=True)

    def call(self, function, name):
        digest = hashlib.sha256(name.encode()).digest()
        key = int.from_bytes(digest[:8], "little", signed=True)
        return self.connection.execute(f"SELECT {function}(%s::bigint)", [key]).fetchone()[0]

    def try_lock(self, name, ttl_ms):
        return self.call("pg_try_advisory_lock", name)

    def lock(self, name, ttl_ms, wait_ms):
        self.connection.execute(f"SET lock_timeout = {max(1, wait_ms)}")
        try:
            self.call("pg_advisory_lock", name)
        except self.timeout:
            return False
        return True

    def release(self, name):
        return self.call("pg_advisory_unlock", name)

    def extend(self, name, ttl_ms):
        raise NotImplementedError("advisory locks last as long as the session")


class Kazoo:
    """`kazoo.recipe.lock.Lock`."""

    KIND = "Lock"

    def __init__(self, url):
        import kazoo.client
        import kazoo.exceptions

        self.errors = kazoo.exceptions
        self.client = kazoo.client.KazooClient(url.removeprefix("zk://"), timeout=4)
        self.client.start(timeout=30)
        self.locks = {}

    def take(self, name, **how):
        lock = getattr(self.client, self.KIND)("/" + name, "leasehold's peer")
        try:
            held = lock.acquire(**how)
        except self.errors.LockTimeout:
            held = False
        if held:
            self.locks[name] = lock
        return held

    def try_lock(self, name, ttl_ms):
        return self.take(name, blocking=False)

    def lock(self, name, ttl_ms, wait_ms):
        return self.take(name, timeout=wait_ms / 1000)

    def release(self, name):
        lock = self.locks.pop(name, None)
        return lock is not None and bool(lock.release())

    def extend(self, name, ttl_ms):
        raise NotImplementedError("kazoo's locks last as long as the session")

    def write(self, node):
        """Writes a node's data; false if that is not allowed."""
        try:
            self.client.set(node, b"")
        except self.errors.NoAuthError:
            return False
        return True

    def seal(self, node):
        """Lets everybody read a node, and nobody do more; false if that is not allowed."""
        import kazoo.security

        try:
            self.client.set_acls(node, kazoo.security.READ_ACL_UNSAFE)
        except self.errors.NoAuthError:
            return False
        return True


class KazooRead(Kazoo):
    """`kazoo.recipe.lock.ReadLock`."""

    KIND = "ReadLock"


class KazooWrite(Kazoo):
    """`kazoo.recipe.lock.WriteLock`."""

    KIND = "WriteLock"


KINDS = {
    "redis-py": RedisPy,
    "redis-py-asyncio": RedisPyAsyncio,
    "python-redis-lock": PythonRedisLock,
    "psycopg": Psycopg,
    "asyncpg": Asyncpg,
    "psycopg-advisory": PsycopgAdvisory,
    "kazoo": Kazoo,
    "kazoo-read": KazooRead,
    "kazoo-write": KazooWrite,
}


def seconds(ms):
    """Whole seconds, at least one, which is what some packages count in."""
    return max(1, math.ceil(ms / 1000))


def answer(peer, line):
    match line.split():
        case ["try", name, ttl_ms]:
            return "held" if peer.try_lock(name, int(ttl_ms)) else "busy"
        case ["lock", name, ttl_ms, wait_ms]:
            return "held" if peer.lock(name, int(ttl_ms), int(wait_ms)) else "timeout"
        case ["release", name]:
            return "released" if peer.release(name) else "gone"
        case ["write", node]:
            return "written" if peer.write(node) else "refused"
        case ["seal", node]:
            return "sealed" if peer.seal(node) else "refused"
        case ["take", name]:
            return "held" if peer.take(name) else "busy"
        case ["keep", name]:
            return "extended" if peer.keep(name) else "gone"
        case ["mark", name, metadata]:
            return "held" if peer.mark(name, json.loads(metadata)) else "busy"
        case ["see", name]:
            if (seen := peer.see(name)) is None:
                return "free"
            holder, span, metadata = seen
            return f"{holder} {round(span)} {json.dumps(metadata)}"
        case ["extend", name, ttl_ms]:
            return "extended" if peer.extend(name, int(ttl_ms)) else "gone"
        case _:
            return "error not a request"


def main():
    kind, *url = sys.argv[1:]
    if kind not in KINDS:
        sys.exit(f"unknown kind {kind}; known are: {', '.join(KINDS)}")
    peer = KINDS[kind](url[0] if url else os.environ["LEASEHOLD_PEER_URL"])
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            said = answer(peer, line)
        except Exception as error:
            said = f"error {type(error).__name__}: {error}".replace("\n", " ")
        print(said, flush=True)


if __name__ == "__main__":
    main()
