-- The verbs of the engine. Arguments are given with each function; spans are in microseconds.
--
-- Called by the library in autocommit, one exchange each. Lines are locked in name order, so two
-- calls never wait for each other. A commit waits for the log to be flushed only when it grants or
-- renews a lease: whatever was committed before is then flushed with it, so nothing that a holder
-- relies on can be lost, and losing the rest (a place in line, a release) only delays somebody.
--
-- Plans are made for a session when a function first runs there, with the tables as small as they
-- are then. So scans of whole tables are ruled out: they would be kept when a line has grown. So
-- are walks along a line, which every index that begins with a name invites while tables are
-- small: a claim is found by its token, as a pair with its name between that pair and itself,
-- which only the index of these pairs serves; and the first of something by its order, and not by
-- `min`.
--
-- `standing` is `held`, `queued`, `out`, `mismatch` or `full`. `span_us` is what remains of a
-- lease, or when to ask again. `holder` and `label` say who holds, where the claim is out.

-- What `claim` does where somebody is in line already. No row is left in `standing` if that turns
-- out to be wrong.
CREATE OR REPLACE FUNCTION leasehold.stand(
    p_name text, p_token bytea, p_units bigint, p_capacity bigint, p_holder bytea, p_label text,
    p_note text, p_ttl_us bigint, p_patience_us bigint, p_join boolean, p_bell bigint, p_plain text,
    OUT standing text, OUT fence bigint, OUT span_us bigint, OUT ahead integer, OUT holder bytea,
    OUT label text, OUT capacity bigint
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_line leasehold.lines := leasehold.enter(p_name);
    v_now timestamptz := clock_timestamp();
    v_mine leasehold.claims;
    v_holds boolean;
BEGIN
    IF v_line.name IS NULL THEN
        RETURN;
    END IF;
    SELECT * INTO v_mine FROM leasehold.claims c
        WHERE (c.token, c.name) BETWEEN (p_token, p_name) AND (p_token, p_name);
    IF FOUND THEN
        v_holds := v_mine.granted IS NOT NULL;
        fence := v_mine.fence;
        span_us := CASE WHEN v_holds
            THEN greatest(p_ttl_us, leasehold.span_us(v_mine.expires, v_now))
            ELSE p_patience_us END;
        UPDATE leasehold.claims c
            SET expires = v_now + span_us * interval '1 microsecond', bell = p_bell
            WHERE (c.token, c.name) BETWEEN (p_token, p_name) AND (p_token, p_name);
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

-- What is to be done about a claim that was just granted on a free name, if other numbers were
-- taken meanwhile or somebody watches. The result is its fence.
CREATE OR REPLACE FUNCTION leasehold.taken(
    p_name text, p_fence bigint, p_holder bytea, p_label text
) RETURNS bigint LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    -- The number was taken before the line was locked. If others were taken since then, one of
    -- them may have been granted on this name and given back already. The low bits of a fence are
    -- those of its arrival, whatever the timeline adds.
    IF ((pg_sequence_last_value('leasehold.arrivals') # p_fence) & 16777215) <> 0 THEN
        p_fence := leasehold.next_fence();
        UPDATE leasehold.lines l SET fence = p_fence WHERE l.name = p_name;
    END IF;
    PERFORM leasehold.tell('granted', p_name, p_fence, p_holder, p_label, '');
    RETURN p_fence;
END
$$;

-- What is to be done about a claim that was just given back and nobody else was in line with, if it
-- had expired or somebody watches. The result is whether it was live.
CREATE OR REPLACE FUNCTION leasehold.parted(
    p_name text, p_fence bigint, p_holder bytea, p_label text, p_expires timestamptz
) RETURNS boolean LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_live boolean := p_expires > clock_timestamp();
BEGIN
    IF NOT v_live THEN
        INSERT INTO leasehold.counts (expired) VALUES (1);
    END IF;
    PERFORM leasehold.tell(CASE WHEN v_live THEN 'released' ELSE 'expired' END,
        p_name, p_fence, p_holder, p_label, '');
    RETURN v_live;
END
$$;

-- Joins a line, asks how a claim stands, or confirms that it holds. `p_plain` is for `acquire_lock`
-- alone, which runs in a transaction that is not ours to make settings for.
CREATE OR REPLACE FUNCTION leasehold.claim(
    p_name text, p_token bytea, p_units bigint, p_capacity bigint, p_holder bytea, p_label text,
    p_note text, p_ttl_us bigint, p_patience_us bigint, p_join boolean, p_bell bigint,
    p_plain text DEFAULT NULL,
    OUT standing text, OUT fence bigint, OUT span_us bigint, OUT ahead integer, OUT holder bytea,
    OUT label text, OUT capacity bigint
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_now timestamptz;
    v_swept integer;
BEGIN
    IF p_plain IS NULL THEN
        PERFORM set_config('lock_timeout', '1500ms', true);
    END IF;
    LOOP
        -- The usual case: nobody is in line, so the claim holds.
        v_now := clock_timestamp();
        INSERT INTO leasehold.lines AS l VALUES (
            p_name, p_capacity, 1, 1, p_units, 0, 1,
            v_now + (p_ttl_us + 60000000) * interval '1 microsecond', p_token,
            leasehold.next_fence(), p_holder, p_label, p_note, p_plain, v_now,
            v_now + p_ttl_us * interval '1 microsecond', p_bell)
            ON CONFLICT DO NOTHING
            -- As many lines are looked after as new ones come, now and then in a row: nobody else
            -- looks after lines that nobody asks about.
            RETURNING CASE
                WHEN ((pg_sequence_last_value('leasehold.arrivals') # l.fence) & 16777215) = 0
                    AND NOT EXISTS (SELECT FROM leasehold.watchers w WHERE w.until > v_now)
                THEN l.fence ELSE leasehold.taken(l.name, l.fence, l.holder, l.label) END,
                CASE WHEN random() < 0.05 THEN leasehold.sweep(40) END
            INTO fence, v_swept;
        IF FOUND THEN
            standing := 'held';
            span_us := p_ttl_us;
            RETURN;
        END IF;
        SELECT * INTO standing, fence, span_us, ahead, holder, label, capacity
            FROM leasehold.stand(p_name, p_token, p_units, p_capacity, p_holder, p_label, p_note,
                p_ttl_us, p_patience_us, p_join, p_bell, p_plain);
        EXIT WHEN standing IS NOT NULL;
        -- Whoever was in line left in between, or had expired.
    END LOOP;
    IF standing <> 'held' AND p_plain IS NULL THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
END
$$;

-- Makes claims on different names that all hold; no row if one would not, and then nothing has
-- changed.
CREATE OR REPLACE FUNCTION leasehold.claim_all(
    p_names text[], p_tokens bytea[], p_units bigint[], p_capacities bigint[], p_holder bytea,
    p_label text, p_notes text[], p_ttls_us bigint[]
) RETURNS TABLE (at bigint, standing text, fence bigint, span_us bigint)
LANGUAGE plpgsql AS $$
DECLARE
    v_key record;
    v_answer record;
    v_ats bigint[];
    v_fences bigint[];
    v_spans bigint[];
BEGIN
    -- In a block of its own, so that what was done before the refusal is undone.
    BEGIN
        FOR v_key IN
            SELECT k.* FROM unnest(p_names, p_tokens, p_units, p_capacities, p_notes, p_ttls_us)
                WITH ORDINALITY AS k (name, token, units, capacity, note, ttl_us, at)
            ORDER BY k.name COLLATE "C"
        LOOP
            SELECT c.standing, c.fence, c.span_us INTO v_answer
                FROM leasehold.claim(v_key.name, v_key.token, v_key.units, v_key.capacity,
                    p_holder, p_label, v_key.note, v_key.ttl_us, v_key.ttl_us, false, 0) c;
            IF v_answer.standing <> 'held' THEN
                RAISE EXCEPTION USING ERRCODE = 'LH001', MESSAGE = 'a name is in use';
            END IF;
            v_ats := v_ats || v_key.at;
            v_fences := v_fences || v_answer.fence;
            v_spans := v_spans || v_answer.span_us;
        END LOOP;
    EXCEPTION WHEN SQLSTATE 'LH001' THEN
        RETURN;
    END;
    RETURN QUERY SELECT g.at, 'held'::text, g.fence, g.span_us
        FROM unnest(v_ats, v_fences, v_spans) AS g (at, fence, span_us);
END
$$;

-- Keeps claims alive: for `p_ttls_us` if they hold, for `p_patiences_us` if they wait. A lease
-- never ends sooner by it, because several clients may count on it. A row for each claim, with its
-- place in the arrays.
CREATE OR REPLACE FUNCTION leasehold.renew(
    p_names text[], p_tokens bytea[], p_ttls_us bigint[], p_patiences_us bigint[]
) RETURNS TABLE (
    at bigint, standing text, fence bigint, span_us bigint, ahead integer, holder bytea, label text
) LANGUAGE plpgsql
SET lock_timeout = '1500ms' SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off AS $$
DECLARE
    v_line leasehold.lines;
    v_mine leasehold.claims;
    v_key record;
    v_name text;
    v_now timestamptz;
    v_held boolean := false;
    v_far leasehold.claims; -- one that is far down the line, and when it is to ask again
    v_far_us bigint;
BEGIN
    FOR v_key IN
        SELECT k.* FROM unnest(p_names, p_tokens, p_ttls_us, p_patiences_us)
            WITH ORDINALITY AS k (name, token, ttl_us, patience_us, at)
        ORDER BY k.name COLLATE "C", k.at
    LOOP
        at := v_key.at;
        IF v_name IS DISTINCT FROM v_key.name THEN
            -- The usual case: nobody else is in line. Compared as in `part.sql`, where all lone
            -- leases would be read for one; here for each of a thousand.
            v_now := clock_timestamp();
            UPDATE leasehold.lines l
                SET expires = v_now + greatest(v_key.ttl_us, leasehold.span_us(l.expires, v_now))
                    * interval '1 microsecond'
                WHERE l.name = v_key.name AND coalesce(l.sole = v_key.token, false)
                    AND l.expires > v_now
                RETURNING l.fence, leasehold.span_us(l.expires, v_now) INTO fence, span_us;
            IF FOUND THEN
                v_held := true;
                standing := 'held';
                ahead := NULL;
                holder := NULL;
                label := NULL;
                RETURN NEXT;
                CONTINUE;
            END IF;
            v_name := v_key.name;
            v_line := leasehold.enter(v_name);
            v_now := clock_timestamp();
            v_far := NULL;
        END IF;
        standing := 'out';
        fence := NULL;
        span_us := 0;
        ahead := 0;
        holder := NULL;
        label := NULL;
        IF v_line.name IS NOT NULL THEN
            SELECT * INTO v_mine FROM leasehold.claims c
                WHERE (c.token, c.name) BETWEEN (v_key.token, v_name) AND (v_key.token, v_name);
            IF NOT FOUND THEN
                ahead := v_line.claims;
                SELECT c.holder, c.label INTO STRICT holder, label FROM leasehold.claims c
                    WHERE c.name = v_name ORDER BY c.fence LIMIT 1;
            ELSIF v_mine.granted IS NOT NULL THEN
                v_held := true;
                standing := 'held';
                fence := v_mine.fence;
                span_us := greatest(
                    v_key.ttl_us, leasehold.span_us(v_mine.expires, v_now));
                UPDATE leasehold.claims c
                    SET expires = v_now + span_us * interval '1 microsecond'
                    WHERE (c.token, c.name) BETWEEN (v_key.token, v_name)
                        AND (v_key.token, v_name);
            ELSE
                standing := 'queued';
                fence := v_mine.fence;
                UPDATE leasehold.claims c
                    SET expires = v_now + v_key.patience_us * interval '1 microsecond'
                    WHERE (c.token, c.name) BETWEEN (v_key.token, v_name)
                        AND (v_key.token, v_name);
                ahead := leasehold.ahead(v_line, v_mine.fence, v_mine.ordinal);
                -- All join and leave behind the lock of a line, so a thousand that renew must not
                -- take long. Whatever is before one claim is before those behind it, and never
                -- later than the rule for them, too.
                IF ahead >= 64 AND v_mine.units = v_far.units AND v_mine.fence > v_far.fence THEN
                    span_us := v_far_us;
                ELSE
                    span_us := leasehold.retry_us(v_line, v_mine.fence, v_mine.units, v_now);
                    IF ahead >= 64 THEN
                        v_far := v_mine;
                        v_far_us := span_us;
                    END IF;
                END IF;
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
    DELETE FROM leasehold.claims c
        WHERE (c.token, c.name) BETWEEN (p_token, p_line.name) AND (p_token, p_line.name)
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

-- What `release` does where others are in line, or for several claims.
CREATE OR REPLACE FUNCTION leasehold.give_back(p_names text[], p_tokens bytea[])
RETURNS TABLE (at bigint, released boolean, holder bytea, label text)
LANGUAGE plpgsql
SET lock_timeout = '1500ms' SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off AS $$
DECLARE
    v_line leasehold.lines;
    v_key record;
    v_name text;
BEGIN
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

-- Gives claims back or takes them out of their lines. A row for each, with its place in the arrays;
-- `holder` and `label` say who holds a name whose claim was not there.
CREATE OR REPLACE FUNCTION leasehold.release(p_names text[], p_tokens bytea[])
RETURNS TABLE (at bigint, released boolean, holder bytea, label text)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true),
        set_config('lock_timeout', '1500ms', true);
    IF cardinality(p_names) = 1 THEN
        -- The usual case: nobody else ever was in line, so the line goes with the claim. Compared
        -- as in `part.sql`.
        DELETE FROM leasehold.lines l
            WHERE l.name = p_names[1] AND coalesce(l.sole = p_tokens[1], false)
            RETURNING CASE WHEN l.expires > v_now
                    AND NOT EXISTS (SELECT FROM leasehold.watchers w WHERE w.until > v_now)
                THEN true ELSE leasehold.parted(l.name, l.fence, l.holder, l.label, l.expires) END
            INTO released;
        IF FOUND THEN
            at := 1;
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    RETURN QUERY SELECT * FROM leasehold.give_back(p_names, p_tokens);
END
$$;

-- Gives a lease back and lets its claim stay for `p_stay_us` under a token that nobody knows.
-- `holder` and `label` say who holds a name whose lease was not there. This commit is flushed: a
-- crash must not bring the earlier end back.
CREATE OR REPLACE FUNCTION leasehold.keep_closed(
    p_name text, p_token bytea, p_stay_us bigint, p_retired bytea,
    OUT released boolean, OUT holder bytea, OUT label text
) LANGUAGE plpgsql
SET lock_timeout = '1500ms' SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off AS $$
DECLARE
    v_line leasehold.lines := leasehold.enter(p_name);
BEGIN
    UPDATE leasehold.claims c
        SET token = p_retired, expires = clock_timestamp() + p_stay_us * interval '1 microsecond'
        WHERE (c.token, c.name) BETWEEN (p_token, p_name) AND (p_token, p_name)
            AND c.granted IS NOT NULL;
    released := FOUND;
    IF NOT released AND v_line.name IS NOT NULL THEN
        SELECT c.holder, c.label INTO STRICT holder, label FROM leasehold.claims c
            WHERE c.name = p_name ORDER BY c.fence LIMIT 1;
    END IF;
END
$$;

-- Takes a name from the claims that hold it with one of these fences, or from all that hold it if
-- there are no fences. A row for each, in order. A line that cannot be worked with goes away with
-- all its claims; then there is a row without a holder.
CREATE OR REPLACE FUNCTION leasehold.evict(p_name text, p_reason text, p_fences bigint[])
RETURNS TABLE (holder bytea, label text) LANGUAGE plpgsql
SET lock_timeout = '1500ms' SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off AS $$
DECLARE
    v_line leasehold.lines;
    v_gone record;
    v_seen integer := 0;
    v_held integer;
BEGIN
    BEGIN
        v_line := leasehold.enter(p_name);
        IF v_line.name IS NULL THEN
            RETURN;
        END IF;
        v_held := v_line.held;
        FOR v_gone IN
            SELECT c.fence, c.token, c.units, c.holder, c.label FROM leasehold.claims c
            WHERE c.name = p_name ORDER BY c.fence LIMIT v_line.held
        LOOP
            v_seen := v_seen + 1;
            CONTINUE WHEN p_fences IS NOT NULL AND NOT (v_gone.fence = ANY (p_fences));
            DELETE FROM leasehold.claims c
                WHERE (c.token, c.name) BETWEEN (v_gone.token, p_name) AND (v_gone.token, p_name);
            v_line.claims := v_line.claims - 1;
            v_line.held := v_line.held - 1;
            v_line.held_units := v_line.held_units - v_gone.units;
            holder := v_gone.holder;
            label := v_gone.label;
            PERFORM leasehold.tell('evicted', p_name, v_gone.fence, holder, label, p_reason);
            RETURN NEXT;
        END LOOP;
        IF p_fences IS NULL THEN
            v_line.held := 0;
            v_line.held_units := 0;
        END IF;
        IF v_seen < v_held THEN
            RAISE data_exception USING MESSAGE = 'fewer claims are there than hold';
        END IF;
        v_line := leasehold.settle(v_line, clock_timestamp());
        IF v_line.held = 0 AND v_line.claims > 0 THEN
            RAISE data_exception USING MESSAGE = 'claims wait, and none of them can hold';
        END IF;
        PERFORM leasehold.save(v_line);
    EXCEPTION WHEN data_exception OR integrity_constraint_violation OR plpgsql_error THEN
        PERFORM FROM leasehold.lines l WHERE l.name = p_name FOR UPDATE;
        DELETE FROM leasehold.claims c WHERE c.name = p_name;
        DELETE FROM leasehold.lines l WHERE l.name = p_name;
        holder := NULL;
        label := NULL;
        RETURN NEXT;
    END;
END
$$;

-- Takes a name from its holders for a new exclusive claim, before those who wait. Each of these
-- gets a new place behind it, in their order. The answer is that of `claim`: `out` if a claim holds
-- that `p_fences` does not have, and then nothing has changed.
CREATE OR REPLACE FUNCTION leasehold.steal(
    p_name text, p_token bytea, p_holder bytea, p_label text, p_note text, p_ttl_us bigint,
    p_reason text, p_fences bigint[],
    OUT standing text, OUT fence bigint, OUT span_us bigint, OUT ahead integer, OUT holder bytea,
    OUT label text, OUT capacity bigint
) LANGUAGE plpgsql
SET lock_timeout = '1500ms' SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off AS $$
DECLARE
    v_line leasehold.lines := leasehold.enter(p_name);
    v_now timestamptz := clock_timestamp();
    v_seen record;
    v_place bigint;
BEGIN
    -- A free name is claimed, and a claim whose answer was lost is found.
    IF v_line.name IS NULL OR EXISTS (
        SELECT FROM leasehold.claims c
        WHERE (c.token, c.name) BETWEEN (p_token, p_name) AND (p_token, p_name))
    THEN
        SELECT c.standing, c.fence, c.span_us, c.ahead, c.holder, c.label, c.capacity
            INTO standing, fence, span_us, ahead, holder, label, capacity
            FROM leasehold.claim(p_name, p_token, 4294967295, 4294967295, p_holder, p_label,
                p_note, p_ttl_us, p_ttl_us, false, 0) c;
        RETURN;
    END IF;
    IF v_line.capacity <> 4294967295 THEN
        standing := 'mismatch';
        capacity := v_line.capacity;
        RETURN;
    END IF;
    FOR v_seen IN
        SELECT c.fence FROM leasehold.claims c
        WHERE c.name = p_name ORDER BY c.fence LIMIT v_line.held
    LOOP
        IF v_seen.fence <> ALL (p_fences) THEN
            standing := 'out';
            ahead := v_line.claims;
            span_us := 0;
            SELECT c.holder, c.label INTO STRICT holder, label FROM leasehold.claims c
                WHERE c.name = p_name ORDER BY c.fence LIMIT 1;
            RETURN;
        END IF;
    END LOOP;

    FOR v_seen IN
        WITH gone AS (
            DELETE FROM leasehold.claims c WHERE c.name = p_name AND c.granted IS NOT NULL
            RETURNING c.fence, c.holder, c.label
        )
        SELECT * FROM gone ORDER BY gone.fence
    LOOP
        PERFORM leasehold.tell(
            'evicted', p_name, v_seen.fence, v_seen.holder, v_seen.label, p_reason);
    END LOOP;
    fence := leasehold.next_fence();
    v_line.claims := 1;
    v_line.arrived := v_line.arrived + 1;
    INSERT INTO leasehold.claims VALUES (
        p_name, fence, p_token, 4294967295, v_line.arrived, p_holder, p_label, p_note, NULL, v_now,
        v_now, v_now + p_ttl_us * interval '1 microsecond', 0);
    PERFORM leasehold.tell('granted', p_name, fence, p_holder, p_label, '');
    FOR v_seen IN
        SELECT c.token, c.holder, c.label FROM leasehold.claims c
        WHERE c.name = p_name AND c.granted IS NULL ORDER BY c.fence
    LOOP
        v_line.claims := v_line.claims + 1;
        v_line.arrived := v_line.arrived + 1;
        v_place := leasehold.next_fence();
        UPDATE leasehold.claims c SET fence = v_place, ordinal = v_line.arrived
            WHERE (c.token, c.name) BETWEEN (v_seen.token, p_name) AND (v_seen.token, p_name);
        PERFORM leasehold.tell(
            'queued', p_name, v_place, v_seen.holder, v_seen.label, '');
    END LOOP;
    v_line.held := 1;
    v_line.held_units := 4294967295;
    v_line.last_held := fence;
    PERFORM leasehold.save(v_line);
    standing := 'held';
    span_us := p_ttl_us;
END
$$;
