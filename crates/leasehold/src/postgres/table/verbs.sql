-- The verbs of the engine. Arguments are given with each function; spans are in microseconds.
--
-- Called by the library in autocommit, one exchange each. Lines are locked in name order, so two
-- calls never wait for each other. A commit waits for the log to be flushed only when it grants or
-- renews a lease: whatever was committed before is then flushed with it, so nothing that a holder
-- relies on can be lost, and losing the rest (a place in line, a release) only delays somebody.
--
-- `standing` is `held`, `queued`, `out`, `mismatch` or `full`. `span_us` is what remains of a lease,
-- or when to ask again. `holder` and `label` say who holds, where the claim is out.

-- Does a claim's business in its line: joins, says how it stands, or confirms that it holds. Leaves
-- the flush to the caller, because `acquire_lock` runs in a transaction that is not ours.
CREATE OR REPLACE FUNCTION leasehold.place(
    p_name text, p_token bytea, p_units bigint, p_capacity bigint, p_holder bytea, p_label text,
    p_note text, p_plain text, p_ttl_us bigint, p_patience_us bigint, p_join boolean, p_bell bigint,
    OUT standing text, OUT fence bigint, OUT span_us bigint, OUT ahead integer, OUT holder bytea,
    OUT label text, OUT capacity bigint
) LANGUAGE plpgsql AS $$
DECLARE
    v_line leasehold.lines;
    v_mine leasehold.claims;
    v_now timestamptz;
    v_holds boolean;
BEGIN
    LOOP
        v_line := leasehold.enter(p_name);
        v_now := clock_timestamp();
        EXIT WHEN v_line.name IS NOT NULL;
        -- The usual case: nobody is in line, so the claim holds.
        INSERT INTO leasehold.lines VALUES (
            p_name, p_capacity, 1, 1, p_units, 0, 1,
            v_now + (p_ttl_us + 60000000) * interval '1 microsecond')
            ON CONFLICT DO NOTHING;
        IF FOUND THEN
            v_now := clock_timestamp();
            -- Only now, with the line locked: numbers taken before could come out of order.
            fence := leasehold.next_fence();
            INSERT INTO leasehold.claims VALUES (
                p_name, fence, p_token, p_units, 1, p_holder, p_label, p_note, p_plain, v_now,
                v_now, v_now + p_ttl_us * interval '1 microsecond', p_bell);
            PERFORM leasehold.tell('granted', p_name, fence, p_holder, p_label, '');
            PERFORM leasehold.sweep(2);
            standing := 'held';
            span_us := p_ttl_us;
            RETURN;
        END IF;
        -- Somebody came in between: the line is there now, unless everybody left again.
    END LOOP;

    SELECT * INTO v_mine FROM leasehold.claims c WHERE c.token = p_token AND c.name = p_name;
    IF FOUND THEN
        v_holds := v_mine.granted IS NOT NULL;
        fence := v_mine.fence;
        span_us := CASE WHEN v_holds THEN p_ttl_us ELSE p_patience_us END;
        UPDATE leasehold.claims c
            SET expires = v_now + span_us * interval '1 microsecond', bell = p_bell
            WHERE c.name = p_name AND c.fence = v_mine.fence;
        IF v_holds THEN
            standing := 'held';
        ELSE
            standing := 'queued';
            ahead := leasehold.ahead(v_line, v_mine.fence, v_mine.ordinal);
            span_us := leasehold.retry_us(v_line, v_mine.fence, v_mine.units, v_now);
        END IF;
        RETURN;
    END IF;

    IF v_line.capacity <> p_capacity THEN
        standing := 'mismatch';
        capacity := v_line.capacity;
        RETURN;
    END IF;
    ahead := v_line.claims;
    v_holds := v_line.held = v_line.claims AND v_line.held_units + p_units <= v_line.capacity;
    IF NOT v_holds THEN
        span_us := leasehold.retry_us(v_line, 9223372036854775807, p_units, v_now);
    END IF;
    IF NOT v_holds AND NOT p_join THEN
        standing := 'out';
        SELECT c.holder, c.label INTO STRICT holder, label FROM leasehold.claims c
            WHERE c.name = p_name ORDER BY c.fence LIMIT 1;
        RETURN;
    END IF;
    IF v_line.claims >= 10000 THEN
        standing := 'full';
        RETURN;
    END IF;

    fence := leasehold.next_fence();
    v_line.claims := v_line.claims + 1;
    v_line.arrived := v_line.arrived + 1;
    IF v_holds THEN
        v_line.held := v_line.held + 1;
        v_line.held_units := v_line.held_units + p_units;
        v_line.last_held := fence;
        span_us := p_ttl_us;
    END IF;
    INSERT INTO leasehold.claims VALUES (
        p_name, fence, p_token, p_units, v_line.arrived, p_holder, p_label, p_note, p_plain, v_now,
        CASE WHEN v_holds THEN v_now END,
        v_now + CASE WHEN v_holds THEN p_ttl_us ELSE p_patience_us END * interval '1 microsecond',
        p_bell);
    PERFORM leasehold.save(v_line);
    standing := CASE WHEN v_holds THEN 'held' ELSE 'queued' END;
    PERFORM leasehold.tell(CASE WHEN v_holds THEN 'granted' ELSE 'queued' END,
        p_name, fence, p_holder, p_label, '');
END
$$;

-- Joins a line, asks how a claim stands, or confirms that it holds.
CREATE OR REPLACE FUNCTION leasehold.claim(
    p_name text, p_token bytea, p_units bigint, p_capacity bigint, p_holder bytea, p_label text,
    p_note text, p_ttl_us bigint, p_patience_us bigint, p_join boolean, p_bell bigint,
    OUT standing text, OUT fence bigint, OUT span_us bigint, OUT ahead integer, OUT holder bytea,
    OUT label text, OUT capacity bigint
) LANGUAGE plpgsql SET lock_timeout = '1500ms' AS $$
BEGIN
    SELECT * INTO standing, fence, span_us, ahead, holder, label, capacity FROM leasehold.place(
        p_name, p_token, p_units, p_capacity, p_holder, p_label, p_note, NULL, p_ttl_us,
        p_patience_us, p_join, p_bell);
    IF standing <> 'held' THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
END
$$;

-- Keeps claims alive: for `p_ttls_us` if they hold, for `p_patiences_us` if they wait. A row for
-- each claim, with its place in the arrays.
CREATE OR REPLACE FUNCTION leasehold.renew(
    p_names text[], p_tokens bytea[], p_ttls_us bigint[], p_patiences_us bigint[]
) RETURNS TABLE (
    at bigint, standing text, fence bigint, span_us bigint, ahead integer, holder bytea, label text
) LANGUAGE plpgsql SET lock_timeout = '1500ms' AS $$
DECLARE
    v_line leasehold.lines;
    v_mine leasehold.claims;
    v_key record;
    v_name text;
    v_now timestamptz;
    v_held boolean := false;
BEGIN
    FOR v_key IN
        SELECT k.* FROM unnest(p_names, p_tokens, p_ttls_us, p_patiences_us)
            WITH ORDINALITY AS k (name, token, ttl_us, patience_us, at)
        ORDER BY k.name COLLATE "C", k.at
    LOOP
        IF v_name IS DISTINCT FROM v_key.name THEN
            v_name := v_key.name;
            v_line := leasehold.enter(v_name);
            v_now := clock_timestamp();
        END IF;
        at := v_key.at;
        standing := 'out';
        fence := NULL;
        span_us := 0;
        ahead := 0;
        holder := NULL;
        label := NULL;
        IF v_line.name IS NOT NULL THEN
            SELECT * INTO v_mine FROM leasehold.claims c
                WHERE c.token = v_key.token AND c.name = v_name;
            IF NOT FOUND THEN
                ahead := v_line.claims;
                SELECT c.holder, c.label INTO STRICT holder, label FROM leasehold.claims c
                    WHERE c.name = v_name ORDER BY c.fence LIMIT 1;
            ELSIF v_mine.granted IS NOT NULL THEN
                v_held := true;
                standing := 'held';
                fence := v_mine.fence;
                span_us := v_key.ttl_us;
                UPDATE leasehold.claims c
                    SET expires = v_now + v_key.ttl_us * interval '1 microsecond'
                    WHERE c.name = v_name AND c.fence = v_mine.fence;
            ELSE
                standing := 'queued';
                UPDATE leasehold.claims c
                    SET expires = v_now + v_key.patience_us * interval '1 microsecond'
                    WHERE c.name = v_name AND c.fence = v_mine.fence;
                ahead := leasehold.ahead(v_line, v_mine.fence, v_mine.ordinal);
                span_us := leasehold.retry_us(v_line, v_mine.fence, v_mine.units, v_now);
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
    IF NOT v_held THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
END
$$;

-- Takes one claim out of its line and settles. The result is whether it was there; the line is
-- saved, and null if nobody is left in it.
CREATE OR REPLACE FUNCTION leasehold.leave(
    INOUT p_line leasehold.lines, p_token bytea, OUT o_left boolean
) LANGUAGE plpgsql AS $$
DECLARE
    v_gone record;
BEGIN
    DELETE FROM leasehold.claims c WHERE c.token = p_token AND c.name = p_line.name
        RETURNING c.fence, c.units, c.granted, c.holder, c.label INTO v_gone;
    o_left := FOUND;
    IF NOT o_left THEN
        RETURN;
    END IF;
    p_line.claims := p_line.claims - 1;
    IF v_gone.granted IS NOT NULL THEN
        p_line.held := p_line.held - 1;
        p_line.held_units := p_line.held_units - v_gone.units;
    END IF;
    PERFORM leasehold.tell(CASE WHEN v_gone.granted IS NULL THEN 'left' ELSE 'released' END,
        p_line.name, v_gone.fence, v_gone.holder, v_gone.label, '');
    p_line := leasehold.settle(p_line, clock_timestamp());
    PERFORM leasehold.save(p_line);
    IF p_line.claims = 0 THEN
        p_line := NULL;
    END IF;
END
$$;

-- Gives claims back or takes them out of their lines. A row for each, with its place in the arrays;
-- `holder` and `label` say who holds a name whose claim was not there.
CREATE OR REPLACE FUNCTION leasehold.release(p_names text[], p_tokens bytea[])
RETURNS TABLE (at bigint, released boolean, holder bytea, label text)
LANGUAGE plpgsql SET lock_timeout = '1500ms' AS $$
DECLARE
    v_line leasehold.lines;
    v_key record;
    v_name text;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    FOR v_key IN
        SELECT k.* FROM unnest(p_names, p_tokens) WITH ORDINALITY AS k (name, token, at)
        ORDER BY k.name COLLATE "C", k.at
    LOOP
        IF v_name IS DISTINCT FROM v_key.name THEN
            v_name := v_key.name;
            v_line := leasehold.enter(v_name);
        END IF;
        at := v_key.at;
        released := false;
        holder := NULL;
        label := NULL;
        IF v_line.name IS NOT NULL THEN
            SELECT l.p_line, l.o_left INTO v_key FROM leasehold.leave(v_line, v_key.token) l;
            v_line := v_key.p_line;
            released := v_key.o_left;
            IF NOT released THEN
                SELECT c.holder, c.label INTO STRICT holder, label FROM leasehold.claims c
                    WHERE c.name = v_name ORDER BY c.fence LIMIT 1;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

-- Takes a name from whoever holds it. A row for each of them, in order.
CREATE OR REPLACE FUNCTION leasehold.evict(p_name text, p_reason text)
RETURNS TABLE (holder bytea, label text) LANGUAGE plpgsql SET lock_timeout = '1500ms' AS $$
DECLARE
    v_line leasehold.lines;
    v_gone record;
BEGIN
    v_line := leasehold.enter(p_name);
    IF v_line.name IS NULL THEN
        RETURN;
    END IF;
    FOR v_gone IN
        WITH gone AS (
            DELETE FROM leasehold.claims c WHERE c.name = p_name AND c.granted IS NOT NULL
            RETURNING c.fence, c.holder, c.label
        )
        SELECT * FROM gone ORDER BY gone.fence
    LOOP
        v_line.claims := v_line.claims - 1;
        holder := v_gone.holder;
        label := v_gone.label;
        PERFORM leasehold.tell('evicted', p_name, v_gone.fence, holder, label, p_reason);
        RETURN NEXT;
    END LOOP;
    v_line.held := 0;
    v_line.held_units := 0;
    PERFORM leasehold.save(leasehold.settle(v_line, clock_timestamp()));
END
$$;
