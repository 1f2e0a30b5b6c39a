-- The leasehold store in PostgreSQL, version 1: its tables. No arguments.
--
-- Run by a client that finds no store, or by hand, as often as one likes and by any number of
-- clients at once:
--
--     leasehold --url postgres://HOST/DATABASE init --print | psql DATABASE
--
-- Instants are the server's `clock_timestamp()`; units and capacities are those of the library's
-- rule, 4294967295 being "everything".

BEGIN;
-- Whoever installs waits for whoever installs already.
SELECT pg_advisory_xact_lock(hashtextextended('leasehold.store', 7738));

DO $$
BEGIN
    -- `CREATE SCHEMA IF NOT EXISTS` would ask for the right to create one even if it is there.
    IF to_regnamespace('leasehold') IS NULL THEN
        CREATE SCHEMA leasehold;
    END IF;
END
$$;

-- One row: the store itself.
CREATE TABLE IF NOT EXISTS leasehold.store (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    version  integer NOT NULL,
    store_id bytea   NOT NULL -- the same for all its clients, and no other store's
);

-- Fences, for all names: whatever becomes of a line, the next number is greater.
CREATE SEQUENCE IF NOT EXISTS leasehold.arrivals AS bigint CACHE 1;

-- A row for each name in use. Its row lock is the line's lock, and its sums are what keeps the
-- work of a verb independent of the line's length.
CREATE TABLE IF NOT EXISTS leasehold.lines (
    name       text        COLLATE "C" PRIMARY KEY,
    capacity   bigint      NOT NULL,
    claims     integer     NOT NULL, -- how many are in line
    held       integer     NOT NULL, -- how many of them hold: the first ones
    held_units bigint      NOT NULL, -- what those take of the capacity
    last_held  bigint      NOT NULL, -- no claim up to this fence waits, and all but one above it do
    arrived    bigint      NOT NULL, -- how many ever came, for their ordinals
    sweep_at   timestamptz NOT NULL, -- when to look whether everybody left without a word
    -- Most lines never have a second claim, and most claims are given back before they are
    -- renewed. So the first one is kept right here until somebody else comes: a grant is one row.
    sole       bytea,                -- its token; null if all claims are in `claims`
    fence      bigint,
    holder     bytea,
    label      text,
    note       text,
    plain      text,
    granted    timestamptz,
    expires    timestamptz,
    bell       bigint
) WITH (fillfactor = 50);
CREATE INDEX IF NOT EXISTS lines_sweep ON leasehold.lines (sweep_at);
CREATE INDEX IF NOT EXISTS lines_holder ON leasehold.lines (holder) WHERE sole IS NOT NULL;

-- The claims of each line in order of arrival. Touched only under the lock of their line, but for
-- their time, which whoever has one may prolong.
CREATE TABLE IF NOT EXISTS leasehold.claims (
    name    text        COLLATE "C" NOT NULL,
    fence   bigint      NOT NULL,
    token   bytea       NOT NULL,
    units   bigint      NOT NULL,
    ordinal bigint      NOT NULL, -- its place among all that ever came to this line
    holder  bytea       NOT NULL,
    label   text        NOT NULL,
    note    text        NOT NULL,
    plain   text,                 -- the holder's id as `acquire_lock` got it
    joined  timestamptz NOT NULL,
    granted timestamptz,          -- since when it holds
    expires timestamptz NOT NULL,
    bell    bigint      NOT NULL, -- what to ring; 0 for nothing
    PRIMARY KEY (name, fence)
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX IF NOT EXISTS claims_token ON leasehold.claims (token, name);
CREATE INDEX IF NOT EXISTS claims_expires ON leasehold.claims (name, expires);
CREATE INDEX IF NOT EXISTS claims_holder ON leasehold.claims (holder, name);

-- All claims, wherever they are kept.
CREATE OR REPLACE VIEW leasehold.everybody AS
    SELECT c.name, l.capacity, c.fence, c.units, c.holder, c.label, c.note, c.plain, c.joined,
        c.granted, c.expires, c.token
    FROM leasehold.claims c JOIN leasehold.lines l ON l.name = c.name
    UNION ALL
    SELECT l.name, l.capacity, l.fence, l.held_units, l.holder, l.label, l.note, l.plain, l.granted,
        l.granted, l.expires, l.sole
    FROM leasehold.lines l WHERE l.sole IS NOT NULL;

-- What clients counted and told, in rows that only `tally` adds up: nobody waits for a sum.
CREATE TABLE IF NOT EXISTS leasehold.counts (
    acquired  bigint NOT NULL DEFAULT 0,
    released  bigint NOT NULL DEFAULT 0,
    contended bigint NOT NULL DEFAULT 0,
    expired   bigint NOT NULL DEFAULT 0,
    lost      bigint NOT NULL DEFAULT 0
);

-- Who reads events, and until when without another word.
CREATE TABLE IF NOT EXISTS leasehold.watchers (
    watcher bigint      PRIMARY KEY,
    until   timestamptz NOT NULL
);
CREATE INDEX IF NOT EXISTS watchers_until ON leasehold.watchers (until);

-- What clients say of their long waits, for the search for deadlocks. Not logged: a crash may
-- forget it, and the clients say it again.
CREATE UNLOGGED TABLE IF NOT EXISTS leasehold.notices (
    holder  bytea       NOT NULL,
    client  bytea       NOT NULL,
    waits   text        NOT NULL,
    expires timestamptz NOT NULL,
    PRIMARY KEY (holder, client)
);
