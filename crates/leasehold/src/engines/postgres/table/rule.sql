-- The rule of a line, as `line.rs` has it. Arguments are given with each function.
--
-- A claim holds when the units of all live claims up to and including it do not exceed the line's
-- capacity. The first `held` claims of a line are those, and `granted` marks them.

-- Tells watchers, if there are any, what happened to a claim.
CREATE OR REPLACE FUNCTION leasehold.tell(
    p_kind text, p_name text, p_fence bigint, p_holder bytea, p_label text, p_reason text
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM leasehold.watchers WHERE until > clock_timestamp()) THEN
        -- Lengths first, because names and labels may contain anything. The reason is cut so that
        -- the whole never exceeds the 8000 bytes of a notification.
        PERFORM pg_notify('leasehold.events', concat_ws(' ',
            p_kind, p_fence, encode(p_holder, 'hex'), octet_length(p_name), octet_length(p_label),
            p_name || p_label || left(p_reason, 1700)));
    END IF;
END
$$;

-- Grants every waiting claim that fits now, and rings its bell. `p_line`: a line whose lock is
-- held; the result is the line as it is then, to be saved.
CREATE OR REPLACE FUNCTION leasehold.settle(p_line leasehold.lines, p_now timestamptz)
RETURNS leasehold.lines LANGUAGE plpgsql AS $$
DECLARE
    v_next record;
BEGIN
    WHILE p_line.held < p_line.claims LOOP
        SELECT c.fence, c.token, c.units, c.holder, c.label, c.bell INTO STRICT v_next
            FROM leasehold.claims c
            WHERE c.name = p_line.name AND c.fence > p_line.last_held AND c.granted IS NULL
            ORDER BY c.fence LIMIT 1;
        EXIT WHEN p_line.held_units + v_next.units > p_line.capacity;
        UPDATE leasehold.claims c SET granted = p_now
            WHERE (c.token, c.name) BETWEEN (v_next.token, p_line.name)
                AND (v_next.token, p_line.name);
        p_line.held := p_line.held + 1;
        p_line.held_units := p_line.held_units + v_next.units;
        p_line.last_held := v_next.fence;
        IF v_next.bell <> 0 THEN
            PERFORM pg_notify('leasehold.bells', to_hex(v_next.bell));
        END IF;
        PERFORM leasehold.tell(
            'granted', p_line.name, v_next.fence, v_next.holder, v_next.label, '');
    END LOOP;
    RETURN p_line;
END
$$;

-- Takes out every claim whose time has run out, and settles. Arguments and result as `settle`.
CREATE OR REPLACE FUNCTION leasehold.expire(p_line leasehold.lines, p_now timestamptz)
RETURNS leasehold.lines LANGUAGE plpgsql AS $$
DECLARE
    v_gone record;
    v_lapsed bigint := 0;
BEGIN
    FOR v_gone IN
        WITH gone AS (
            DELETE FROM leasehold.claims c
            WHERE c.name = p_line.name AND c.expires <= p_now
            RETURNING c.fence, c.units, c.granted, c.holder, c.label
        )
        SELECT * FROM gone ORDER BY gone.fence
    LOOP
        p_line.claims := p_line.claims - 1;
        IF v_gone.granted IS NOT NULL THEN
            p_line.held := p_line.held - 1;
            p_line.held_units := p_line.held_units - v_gone.units;
            v_lapsed := v_lapsed + 1;
        END IF;
        PERFORM leasehold.tell(
            'expired', p_line.name, v_gone.fence, v_gone.holder, v_gone.label, '');
    END LOOP;
    IF v_lapsed > 0 THEN
        INSERT INTO leasehold.counts (expired) VALUES (v_lapsed);
    END IF;
    RETURN leasehold.settle(p_line, p_now);
END
$$;

-- Writes a line's sums down; one that nobody is in goes away.
CREATE OR REPLACE FUNCTION leasehold.save(p_line leasehold.lines)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_line.claims = 0 THEN
        DELETE FROM leasehold.lines l WHERE l.name = p_line.name;
    ELSE
        UPDATE leasehold.lines l SET
            capacity = p_line.capacity, claims = p_line.claims, held = p_line.held,
            held_units = p_line.held_units, last_held = p_line.last_held,
            arrived = p_line.arrived, sweep_at = p_line.sweep_at
            WHERE l.name = p_line.name;
    END IF;
END
$$;

-- Puts a claim that is kept in its line's row where all others are. Arguments and result as
-- `settle`, but the line is saved.
CREATE OR REPLACE FUNCTION leasehold.unfold(p_line leasehold.lines)
RETURNS leasehold.lines LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO leasehold.claims VALUES (
        p_line.name, p_line.fence, p_line.sole, p_line.held_units, 1, p_line.holder, p_line.label,
        p_line.note, p_line.plain, p_line.granted, p_line.granted, p_line.expires, p_line.bell);
    UPDATE leasehold.lines l SET
        sole = NULL, fence = NULL, holder = NULL, label = NULL, note = NULL, plain = NULL,
        granted = NULL, expires = NULL, bell = NULL
        WHERE l.name = p_line.name
        RETURNING * INTO STRICT p_line;
    RETURN p_line;
END
$$;

-- Locks the line of `p_name`, takes out what has expired and saves it. The result is null if nobody
-- is in line; then nothing is locked.
CREATE OR REPLACE FUNCTION leasehold.enter(p_name text)
RETURNS leasehold.lines LANGUAGE plpgsql AS $$
DECLARE
    v_line leasehold.lines;
    v_now timestamptz;
BEGIN
    SELECT * INTO v_line FROM leasehold.lines l WHERE l.name = p_name FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF v_line.sole IS NOT NULL THEN
        v_line := leasehold.unfold(v_line);
    END IF;
    -- Read after the lock was got, which may have taken its time.
    v_now := clock_timestamp();
    -- Asked like this, so that one entry of the index by expiry is read with a plan made for small
    -- tables, too: for those `min` is as well answered by reading all of them.
    IF (SELECT c.expires FROM leasehold.claims c WHERE c.name = p_name
            ORDER BY c.expires LIMIT 1) <= v_now THEN
        v_line := leasehold.expire(v_line, v_now);
        PERFORM leasehold.save(v_line);
        IF v_line.claims = 0 THEN
            RETURN NULL;
        END IF;
    END IF;
    RETURN v_line;
END
$$;

-- How many claims of a line are before one of them, given by its fence and ordinal. Exact when
-- there are fewer than 64 before it or behind it; else between 64 and the claims that came before
-- it and after the head, some of which may have left.
CREATE OR REPLACE FUNCTION leasehold.ahead(
    p_line leasehold.lines, p_fence bigint, p_ordinal bigint
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_count integer;
    v_first bigint;
BEGIN
    SELECT count(*) INTO v_count FROM (
        SELECT FROM leasehold.claims c
        WHERE c.name = p_line.name AND c.fence < p_fence ORDER BY c.fence DESC LIMIT 64) near;
    IF v_count < 64 THEN
        RETURN v_count;
    END IF;
    SELECT count(*) INTO v_count FROM (
        SELECT FROM leasehold.claims c
        WHERE c.name = p_line.name AND c.fence > p_fence ORDER BY c.fence LIMIT 64) near;
    IF v_count < 64 THEN
        RETURN p_line.claims - 1 - v_count;
    END IF;
    SELECT c.ordinal INTO STRICT v_first FROM leasehold.claims c
        WHERE c.name = p_line.name ORDER BY c.fence LIMIT 1;
    RETURN least(p_ordinal - v_first, p_line.claims - 1 - 64);
END
$$;

-- In how many microseconds a claim of `p_units` behind all claims below `p_fence` would hold if
-- nobody said another word. Looks at the 32 first and the 32 nearest of them: exact when those are
-- all, else never later than the rule.
CREATE OR REPLACE FUNCTION leasehold.retry_us(
    p_line leasehold.lines, p_fence bigint, p_units bigint, p_now timestamptz
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_at timestamptz;
BEGIN
    SELECT max(ranked.expires) FILTER (WHERE ranked.taken > p_line.capacity - p_units) INTO v_at
    FROM (
        SELECT near.expires, sum(near.units) OVER (ORDER BY near.expires DESC, near.fence) AS taken
        FROM (
            (SELECT c.fence, c.units, c.expires FROM leasehold.claims c
                WHERE c.name = p_line.name AND c.fence < p_fence ORDER BY c.fence LIMIT 32)
            UNION
            (SELECT c.fence, c.units, c.expires FROM leasehold.claims c
                WHERE c.name = p_line.name AND c.fence < p_fence ORDER BY c.fence DESC LIMIT 32)
        ) near
    ) ranked;
    RETURN coalesce(leasehold.span_us(v_at, p_now), 0);
END
$$;

-- The microseconds from one instant to a later one; zero if it is not later, null if one of them
-- is infinite.
CREATE OR REPLACE FUNCTION leasehold.span_us(p_until timestamptz, p_from timestamptz)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN isfinite(p_until) IS NOT false AND isfinite(p_from) IS NOT false
        THEN greatest(round(extract(epoch FROM p_until - p_from) * 1000000), 0)::bigint END
$$;

-- The fence of an arrival. It begins with the server's timeline, which rises when a standby is
-- promoted or a backup is rolled forward: numbers that the lost server gave out are then below all
-- new ones. The first timeline counts from 1. Arrivals from 2^44 on are those since `bump_epoch`,
-- which begins at the clock: each timeline takes a smaller step then, 17 seconds of that clock, so
-- that fences stay behind it.
CREATE OR REPLACE FUNCTION leasehold.fence_of(p_arrival bigint)
RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT p_arrival
        + ((('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint - 1)
        << CASE WHEN p_arrival < 17592186044416 THEN 44 ELSE 24 END)
$$;

-- The next fence. Not in SQL: what is used twice and changes with each call is not written out
-- where it is used, and costs three times as much.
CREATE OR REPLACE FUNCTION leasehold.next_fence() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_arrival bigint := nextval('leasehold.arrivals');
BEGIN
    RETURN leasehold.fence_of(v_arrival);
END
$$;

-- Looks at up to `p_lines` lines that nobody asked about for a minute after their time.
CREATE OR REPLACE FUNCTION leasehold.sweep(p_lines integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_line leasehold.lines;
    v_now timestamptz := clock_timestamp();
    v_swept integer := 0;
BEGIN
    -- Lines that others work on are left to them, so that nobody ever waits for a sweep.
    FOR v_line IN
        SELECT * FROM leasehold.lines l WHERE l.sweep_at <= v_now
        ORDER BY l.sweep_at LIMIT p_lines FOR UPDATE SKIP LOCKED
    LOOP
        IF v_line.sole IS NOT NULL AND v_line.expires > v_now THEN
            v_line.sweep_at := v_line.expires + interval '1 minute';
        ELSE
            IF v_line.sole IS NOT NULL THEN
                v_line := leasehold.unfold(v_line);
            END IF;
            v_line := leasehold.expire(v_line, v_now);
            SELECT c.expires + interval '1 minute' INTO v_line.sweep_at
                FROM leasehold.claims c WHERE c.name = v_line.name
                ORDER BY c.expires DESC LIMIT 1;
        END IF;
        PERFORM leasehold.save(v_line);
        v_swept := v_swept + 1;
    END LOOP;
    RETURN v_swept;
END
$$;
