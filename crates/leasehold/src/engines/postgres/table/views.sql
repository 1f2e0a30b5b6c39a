-- What others may see: lines, sums and events. Arguments are given with each function.
--
-- Reading changes nothing and locks nothing. What has expired is not shown, and who holds is
-- reckoned from what is left.

-- The claims of the lines from `p_first` to `p_last` after `p_after`, and of `p_holder` if it is
-- given: those of `p_lines` lines, in order. Ages and spans are in microseconds.
CREATE OR REPLACE FUNCTION leasehold.inspect(
    p_first text, p_last text, p_after text, p_holder bytea, p_lines integer
) RETURNS TABLE (
    name text, capacity bigint, fence bigint, units bigint, holder bytea, label text, note text,
    age_us bigint, remaining_us bigint, holds boolean, closed boolean
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_names text[];
BEGIN
    IF p_holder IS NULL THEN
        SELECT array_agg(chosen.name) INTO v_names FROM (
            SELECT l.name FROM leasehold.lines l
            WHERE l.name > p_after AND l.name >= p_first AND l.name <= p_last
                AND (l.expires > v_now OR EXISTS (
                    SELECT FROM leasehold.claims c WHERE c.name = l.name AND c.expires > v_now))
            ORDER BY l.name LIMIT p_lines) chosen;
    ELSE
        SELECT array_agg(chosen.name) INTO v_names FROM (
            SELECT DISTINCT e.name FROM leasehold.everybody e
            WHERE e.holder = p_holder AND e.name > p_after AND e.expires > v_now
            ORDER BY e.name LIMIT p_lines) chosen;
    END IF;
    RETURN QUERY
        SELECT e.name, e.capacity, e.fence, e.units, e.holder, e.label, e.note,
            leasehold.span_us(v_now, coalesce(e.granted, e.joined)),
            leasehold.span_us(e.expires, v_now),
            sum(e.units) OVER (PARTITION BY e.name ORDER BY e.fence) <= e.capacity,
            -- How the tokens begin that `keep_closed` is given: `retired` and a zero.
            substr(e.token, 1, 8) = '\x7265746972656400'
        FROM leasehold.everybody e
        WHERE e.name = ANY (v_names) AND e.expires > v_now
        ORDER BY e.name, e.fence;
END
$$;

-- Adds a client's counts to the store's; also the time to look after lines that nobody asks about.
CREATE OR REPLACE FUNCTION leasehold.tally(
    p_acquired bigint, p_released bigint, p_contended bigint, p_expired bigint, p_lost bigint
) RETURNS void LANGUAGE plpgsql SET jit = off AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM leasehold.sweep(1000);
    -- One at a time: two that add the rows up at once would each miss the other's sum.
    PERFORM FROM leasehold.store FOR UPDATE;
    INSERT INTO leasehold.counts VALUES (p_acquired, p_released, p_contended, p_expired, p_lost);
    WITH old AS (DELETE FROM leasehold.counts RETURNING *)
        INSERT INTO leasehold.counts
        SELECT sum(o.acquired), sum(o.released), sum(o.contended), sum(o.expired), sum(o.lost)
        FROM old o;
END
$$;

-- What all clients told, and what is in the lines now. No arguments; one row.
CREATE OR REPLACE FUNCTION leasehold.totals() RETURNS TABLE (
    acquired bigint, released bigint, contended bigint, expired bigint, lost bigint,
    active bigint, waiting bigint
) LANGUAGE sql STABLE AS $$
    SELECT k.*, f.* FROM (
        SELECT coalesce(sum(acquired), 0)::bigint, coalesce(sum(released), 0)::bigint,
            coalesce(sum(contended), 0)::bigint, coalesce(sum(expired), 0)::bigint,
            coalesce(sum(lost), 0)::bigint
        FROM leasehold.counts) k,
    (
        SELECT count(*) FILTER (WHERE holds), count(*) FILTER (WHERE NOT holds)
        FROM (
            SELECT sum(e.units) OVER (PARTITION BY e.name ORDER BY e.fence) <= e.capacity AS holds
            FROM leasehold.everybody e WHERE e.expires > clock_timestamp()) live) f
$$;

-- Enters a watcher, or prolongs its stay: from here on events are told.
CREATE OR REPLACE FUNCTION leasehold.watch(p_watcher bigint, p_for_us bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    DELETE FROM leasehold.watchers w WHERE w.until <= clock_timestamp();
    INSERT INTO leasehold.watchers VALUES (
        p_watcher, clock_timestamp() + p_for_us * interval '1 microsecond')
        ON CONFLICT (watcher) DO UPDATE SET until = excluded.until;
END
$$;

-- A watcher leaves.
CREATE OR REPLACE FUNCTION leasehold.unwatch(p_watcher bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    DELETE FROM leasehold.watchers w WHERE w.watcher = p_watcher;
END
$$;

-- Writes down what a client says of its long waits, in place of what it said before. `p_waits`:
-- empty takes it back; `p_keep_us`: after which it lapses.
CREATE OR REPLACE FUNCTION leasehold.announce(
    p_holder bytea, p_client bytea, p_waits text, p_keep_us bigint
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    -- What dead clients said goes with the next word of anybody; who is at it leaves it to others.
    DELETE FROM leasehold.notices n WHERE (n.holder, n.client) IN (
        SELECT o.holder, o.client FROM leasehold.notices o
        WHERE o.expires <= clock_timestamp() FOR UPDATE SKIP LOCKED);
    IF p_waits = '' THEN
        DELETE FROM leasehold.notices n WHERE n.holder = p_holder AND n.client = p_client;
    ELSE
        INSERT INTO leasehold.notices VALUES (p_holder, p_client, p_waits,
            clock_timestamp() + p_keep_us * interval '1 microsecond')
            ON CONFLICT (holder, client)
            DO UPDATE SET waits = excluded.waits, expires = excluded.expires;
    END IF;
END
$$;

-- What the clients of a holder said of their waits.
CREATE OR REPLACE FUNCTION leasehold.waits_of(p_holder bytea)
RETURNS TABLE (waits text) LANGUAGE sql STABLE AS $$
    SELECT n.waits FROM leasehold.notices n
    WHERE n.holder = p_holder AND n.expires > clock_timestamp()
$$;
