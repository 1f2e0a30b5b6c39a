-- The leasehold store in an SQLite file, version 1. No arguments; run once, inside a transaction.
--
-- All instants are nanoseconds on the host's boot clock; they mean nothing under another boot id,
-- and the first client of a new boot empties `claims`. Only fences must survive: `fence_mark` is
-- flushed to disk before any fence up to it is given out.

-- One row: the store itself.
CREATE TABLE store (
    id            INTEGER PRIMARY KEY CHECK (id = 1),
    store_id      BLOB    NOT NULL,
    boot_id       TEXT    NOT NULL,
    fence         INTEGER NOT NULL, -- the last fence given out
    fence_mark    INTEGER NOT NULL, -- no fence above this one was ever given out
    watched_until INTEGER NOT NULL  -- until then somebody reads `events`
);

-- The lines: the claims of each name in order of arrival. Keyed so that a line is one stretch of
-- one tree, and an uncontended grant writes one page of it.
CREATE TABLE claims (
    name    TEXT    NOT NULL,
    fence   INTEGER NOT NULL,
    token   BLOB    NOT NULL,
    mode    INTEGER NOT NULL, -- 0 exclusive, 1 shared, 2 permits
    take    INTEGER NOT NULL, -- permits: how many
    of      INTEGER NOT NULL, -- permits: out of how many
    holder  BLOB    NOT NULL,
    label   TEXT    NOT NULL,
    note    TEXT    NOT NULL,
    joined  INTEGER NOT NULL,
    granted INTEGER,          -- since when it holds
    expires INTEGER NOT NULL,
    mailbox INTEGER NOT NULL, -- which pipe to ring; 0 for none
    PRIMARY KEY (name, fence)
) WITHOUT ROWID;

-- One row: what all clients counted, as far as they told.
CREATE TABLE totals (
    id        INTEGER PRIMARY KEY CHECK (id = 1),
    acquired  INTEGER NOT NULL,
    released  INTEGER NOT NULL,
    contended INTEGER NOT NULL,
    expired   INTEGER NOT NULL,
    lost      INTEGER NOT NULL
);

-- Written only while somebody watches; the newest thousand or so are kept.
CREATE TABLE events (
    id     INTEGER PRIMARY KEY,
    kind   TEXT    NOT NULL,
    name   TEXT    NOT NULL,
    holder BLOB    NOT NULL,
    label  TEXT    NOT NULL,
    fence  INTEGER NOT NULL,
    reason TEXT    NOT NULL
);

-- What clients say of their long waits, for the search for deadlocks.
CREATE TABLE notices (
    holder  BLOB    NOT NULL,
    client  BLOB    NOT NULL,
    waits   TEXT    NOT NULL,
    expires INTEGER NOT NULL,
    PRIMARY KEY (holder, client)
) WITHOUT ROWID;

CREATE TABLE watchers (
    mailbox INTEGER PRIMARY KEY,
    until   INTEGER NOT NULL
);
