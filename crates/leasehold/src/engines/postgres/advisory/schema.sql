-- What advisory locks need in a PostgreSQL database, version 1. No arguments.
--
-- Run by a client that finds nothing, or by hand, as often as one likes and by any number of
-- clients at once:
--
--     leasehold --url postgres+advisory://HOST/DATABASE init --print | psql DATABASE
--
-- The locks themselves are in the server's memory; here are their fences, what is known about a
-- server's life, and what holders say about themselves.

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

-- One row: the store itself, its longest ttl as far as a guard needs it, and its counts.
CREATE TABLE IF NOT EXISTS leasehold.advisory (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    version   integer NOT NULL,
    store_id  bytea   NOT NULL,
    ttl_ms    bigint  NOT NULL DEFAULT 0,
    acquired  bigint  NOT NULL DEFAULT 0,
    released  bigint  NOT NULL DEFAULT 0,
    contended bigint  NOT NULL DEFAULT 0,
    expired   bigint  NOT NULL DEFAULT 0,
    lost      bigint  NOT NULL DEFAULT 0
);

-- Fences, for all names. Taken while the lock is held.
CREATE SEQUENCE IF NOT EXISTS leasehold.advisory_fences AS bigint CACHE 1;

-- One row while the server has forgotten nothing. It is not logged, so a crash, a restored backup
-- or a promoted standby empties the table; and it names the server's start, so a clean restart
-- shows as well.
CREATE UNLOGGED TABLE IF NOT EXISTS leasehold.advisory_life (
    one      boolean     PRIMARY KEY DEFAULT true CHECK (one),
    started  timestamptz NOT NULL,
    since    timestamptz NOT NULL, -- what was granted before is forgotten
    guard_ms bigint      NOT NULL  -- the longest ttl there was then
);

-- What sessions say about locks that they have or wait for. `pg_locks` decides what is true.
CREATE UNLOGGED TABLE IF NOT EXISTS leasehold.advisory_claims (
    id      bigint      PRIMARY KEY,
    pid     integer     NOT NULL,
    backend bigint      NOT NULL, -- when the process began, in microseconds: pids come again
    class   bigint      NOT NULL, -- as in `pg_locks`
    object  bigint      NOT NULL,
    kind    smallint    NOT NULL,
    name    text        COLLATE "C" NOT NULL,
    holder  bytea       NOT NULL,
    label   text        NOT NULL,
    note    text        NOT NULL,
    fence   bigint      NOT NULL, -- 0 while it waits
    since   timestamptz NOT NULL,
    expires timestamptz NOT NULL
);
CREATE INDEX IF NOT EXISTS advisory_claims_pid ON leasehold.advisory_claims (pid);

-- The first statement of every session. Answers for how long locks do not count yet.
CREATE OR REPLACE FUNCTION leasehold.advisory_begin(
    OUT version integer, OUT store_id bytea, OUT ttl_ms bigint, OUT guard_ms bigint,
    OUT age_ms bigint
) LANGUAGE plpgsql AS $$
DECLARE
    v_started timestamptz := pg_postmaster_start_time();
    v_life leasehold.advisory_life;
    v_last bigint;
    v_step integer;
BEGIN
    SELECT * INTO v_life FROM leasehold.advisory_life;
    IF v_life.started IS DISTINCT FROM v_started THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('leasehold.store', 7738));
        SELECT * INTO v_life FROM leasehold.advisory_life;
    END IF;
    IF v_life.started IS DISTINCT FROM v_started THEN
        PERFORM set_config('synchronous_commit', 'on', true);
        -- Sessions do not wait for the disk, so a crash may have taken the last fences back. The
        -- next ones are beyond all that can have been given out. A ttl is written down, and
        -- waited for, before the first grant: where none is, there was no grant.
        SELECT s.last_value INTO v_last FROM leasehold.advisory_fences s;
        IF EXISTS (SELECT FROM leasehold.advisory a WHERE a.ttl_ms > 0) THEN
            -- Since `advisory_bump` fences begin at the clock, and must stay behind it.
            v_step := CASE WHEN v_last < 17592186044416 THEN 32 ELSE 24 END;
            PERFORM setval('leasehold.advisory_fences', ((v_last >> v_step) + 1) << v_step);
        END IF;
        -- Without the row nobody knows when the server forgot.
        INSERT INTO leasehold.advisory_life AS l (started, since, guard_ms)
        SELECT v_started,
            CASE WHEN v_life.started IS NULL THEN clock_timestamp() ELSE v_started END, a.ttl_ms
        FROM leasehold.advisory a
        ON CONFLICT (one) DO UPDATE SET started = excluded.started, since = excluded.since,
            guard_ms = excluded.guard_ms
        RETURNING l.* INTO v_life;
        -- What dead sessions said.
        DELETE FROM leasehold.advisory_claims;
    END IF;
    SELECT a.version, a.store_id, a.ttl_ms INTO version, store_id, ttl_ms
    FROM leasehold.advisory a;
    guard_ms := v_life.guard_ms;
    age_ms := floor(extract(epoch FROM clock_timestamp() - v_life.since) * 1000);
END
$$;

-- Lets fences go on above all that were ever given out, after a backup was restored: they begin at
-- the clock, which no backup takes back, and are given out more slowly than it runs.
CREATE OR REPLACE FUNCTION leasehold.advisory_bump(
    p_above bigint, p_now_us bigint, OUT before bigint, OUT first bigint
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    PERFORM pg_advisory_xact_lock(hashtextextended('leasehold.store', 7738));
    SELECT s.last_value + 1 INTO before FROM leasehold.advisory_fences s;
    -- With room for what others are granted between these two lines.
    first := greatest(before + 1048576, p_above + 1, p_now_us,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    PERFORM setval('leasehold.advisory_fences', first, false);
END
$$;

INSERT INTO leasehold.advisory (version, store_id)
SELECT 1, decode(replace(gen_random_uuid()::text, '-', ''), 'hex')
ON CONFLICT (one) DO NOTHING;
COMMIT;
