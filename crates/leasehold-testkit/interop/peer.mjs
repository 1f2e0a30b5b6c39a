/*
 * Takes and gives back locks with npm packages that people run, for tests beside leasehold.
 *
 *     node peer.mjs KIND [URL…]
 *
 * Started in the folder that has `node_modules`. Several addresses are separated by spaces or
 * commas, and may stand in LEASEHOLD_PEER_URL instead, where other users of the machine do not see
 * a password. Requests and answers are those of peer.py.
 *
 * The kinds, and where each keeps the lock of NAME:
 *
 *     redlock          the Redis key NAME, on every server
 *     redis-semaphore  the Redis key mutex:NAME, with the package's Mutex
 *
 * No lock is renewed: it ends with its ttl, as it does for who holds one for too long.
 */

import { createRequire } from "node:module";
import path from "node:path";
import process from "node:process";
import readline from "node:readline";

const require = createRequire(path.join(process.cwd(), "peer.mjs"));

/* How long to pause before asking again; both packages ask again and again. */
const RETRY_MS = 20;

class RedlockPeer {
    constructor(clients) {
        const redlock = require("redlock");
        this.errors = redlock;
        this.redlock = new redlock.default(clients, { retryDelay: RETRY_MS, retryJitter: 0 });
        this.locks = new Map();
    }

    async take(name, ttlMs, retryCount) {
        try {
            this.locks.set(name, await this.redlock.acquire([name], ttlMs, { retryCount }));
            return true;
        } catch (error) {
            return await this.notHeld(error);
        }
    }

    tryLock(name, ttlMs) {
        return this.take(name, ttlMs, 0);
    }

    lock(name, ttlMs, waitMs) {
        return this.take(name, ttlMs, Math.ceil(waitMs / RETRY_MS));
    }

    async release(name) {
        const lock = this.locks.get(name);
        this.locks.delete(name);
        if (!lock) return false;
        try {
            await this.redlock.release(lock, { retryCount: 0 });
            return true;
        } catch (error) {
            return await this.notHeld(error);
        }
    }

    async extend(name, ttlMs) {
        const lock = this.locks.get(name);
        if (!lock) return false;
        try {
            this.locks.set(name, await this.redlock.extend(lock, ttlMs, { retryCount: 0 }));
            return true;
        } catch (error) {
            return await this.notHeld(error);
        }
    }

    /* False when some server said that the lock is another's; else the failure is a real one. */
    async notHeld(error) {
        if (!(error instanceof this.errors.ExecutionError)) throw error;
        const attempts = await Promise.all(error.attempts);
        if (attempts.length === 0) return false;
        const votes = [...attempts.at(-1).votesAgainst.values()];
        if (votes.some((vote) => vote instanceof this.errors.ResourceLockedError)) return false;
        throw new Error(votes.map((vote) => vote.message).join("; "));
    }
}

class RedisSemaphorePeer {
    constructor([client]) {
        this.Mutex = require("redis-semaphore").Mutex;
        this.client = client;
        this.locks = new Map();
    }

    mutex(name, options) {
        return new this.Mutex(this.client, name, { refreshInterval: 0, ...options });
    }

    async take(name, options) {
        const mutex = this.mutex(name, { retryInterval: RETRY_MS, ...options });
        const held = await mutex.tryAcquire();
        if (held) this.locks.set(name, mutex);
        return held;
    }

    tryLock(name, lockTimeout) {
        return this.take(name, { lockTimeout, acquireAttemptsLimit: 1 });
    }

    lock(name, lockTimeout, acquireTimeout) {
        return this.take(name, { lockTimeout, acquireTimeout });
    }

    async release(name) {
        const mutex = this.locks.get(name);
        this.locks.delete(name);
        if (!mutex) return false;
        /* The package does not tell whether there was something to release. */
        const owner = await this.client.get(`mutex:${name}`);
        await mutex.release();
        return owner === mutex.identifier;
    }

    /* The package's way to go on with a lock under another ttl. */
    async extend(name, lockTimeout) {
        const identifier = this.locks.get(name)?.identifier;
        if (!identifier) return false;
        const mutex = this.mutex(name, { lockTimeout, identifier, acquiredExternally: true });
        const held = await mutex.tryAcquire();
        if (held) this.locks.set(name, mutex);
        return held;
    }
}

const KINDS = { redlock: RedlockPeer, "redis-semaphore": RedisSemaphorePeer };

async function connect(urls) {
    const Redis = require("ioredis").default;
    const clients = urls.map((url) => new Redis(url, { maxRetriesPerRequest: 1 }));
    for (const client of clients) {
        client.on("error", (error) => console.error(error.message));
    }
    await Promise.all(clients.map((client) => client.ping()));
    return clients;
}

async function answer(peer, line) {
    const [verb, name, ...numbers] = line.trim().split(/\s+/);
    const [ttlMs, waitMs] = numbers.map(Number);
    switch (`${verb} ${numbers.length}`) {
        case "try 1":
            return (await peer.tryLock(name, ttlMs)) ? "held" : "busy";
        case "lock 2":
            return (await peer.lock(name, ttlMs, waitMs)) ? "held" : "timeout";
        case "release 0":
            return (await peer.release(name)) ? "released" : "gone";
        case "extend 1":
            return (await peer.extend(name, ttlMs)) ? "extended" : "gone";
        default:
            return "error not a request";
    }
}

const [kind, ...given] = process.argv.slice(2);
if (!Object.hasOwn(KINDS, kind)) {
    console.error(`unknown kind ${kind}; known are: ${Object.keys(KINDS).join(", ")}`);
    process.exit(1);
}
const urls = (given.join(" ") || process.env.LEASEHOLD_PEER_URL).split(/[\s,]+/).filter(Boolean);
const peer = new KINDS[kind](await connect(urls));
console.log("ready");
for await (const line of readline.createInterface({ input: process.stdin })) {
    let said;
    try {
        said = await answer(peer, line);
    } catch (error) {
        said = `error ${error.name}: ${error.message}`.replaceAll("\n", " ");
    }
    console.log(said);
}
process.exit(0);
