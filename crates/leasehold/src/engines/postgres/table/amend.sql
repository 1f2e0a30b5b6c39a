-- Changing what is in line. Arguments are given with each function.

-- Changes a claim that holds; `p_units` or `p_note` is null to leave that as it is. Answers `done`,
-- `refused`, or `out` with who holds. An upgrade is a grant, so this commit is flushed.
CREATE OR REPLACE FUNCTION leasehold.amend(
    p_name text, p_token bytea, p_units bigint, p_capacity bigint, p_note text,
    OUT outcome text, OUT holder bytea, OUT label text
) LANGUAGE plpgsql
SET lock_timeout = '1500ms' SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off AS $$
DECLARE
    c_all CONSTANT bigint := 4294967295;
    v_line leasehold.lines := leasehold.enter(p_name);
    v_mine leasehold.claims;
BEGIN
    SELECT * INTO v_mine FROM leasehold.claims c
        WHERE (c.token, c.name) BETWEEN (p_token, p_name) AND (p_token, p_name);
    IF v_mine.granted IS NULL THEN
        outcome := 'out';
        SELECT c.holder, c.label INTO holder, label FROM leasehold.claims c
            WHERE c.name = p_name ORDER BY c.fence LIMIT 1;
        RETURN;
    END IF;
    -- Nobody who holds may lose that by it. Only somebody who holds alone may take more.
    IF p_units IS NOT NULL AND (p_capacity <> v_line.capacity OR p_units < 1
        OR p_units > v_mine.units
            AND NOT (v_line.capacity = c_all AND p_units = c_all AND v_line.held = 1)) THEN
        outcome := 'refused';
        RETURN;
    END IF;
    UPDATE leasehold.claims c
        SET units = coalesce(p_units, c.units), note = coalesce(p_note, c.note)
        WHERE (c.token, c.name) BETWEEN (p_token, p_name) AND (p_token, p_name);
    v_line.held_units := v_line.held_units - v_mine.units + coalesce(p_units, v_mine.units);
    PERFORM leasehold.tell(
        'amended', p_name, v_mine.fence, v_mine.holder, v_mine.label, '');
    v_line := leasehold.settle(v_line, clock_timestamp());
    PERFORM leasehold.save(v_line);
    outcome := 'done';
END
$$;

-- Gives a semaphore the limit `p_of`. Answers `done` with the limit before, `unused`, `mismatch`,
-- or `held` or `wanted` with how many units stand against it.
CREATE OR REPLACE FUNCTION leasehold.resize(
    p_name text, p_of bigint, OUT outcome text, OUT units bigint
) LANGUAGE plpgsql
SET lock_timeout = '1500ms' SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off AS $$
DECLARE
    v_line leasehold.lines := leasehold.enter(p_name);
BEGIN
    units := v_line.capacity;
    IF v_line.name IS NULL THEN
        outcome := 'unused';
    ELSIF v_line.capacity = 4294967295 THEN
        outcome := 'mismatch';
    ELSIF v_line.held_units > p_of THEN
        outcome := 'held';
        units := v_line.held_units;
    ELSE
        SELECT max(c.units) INTO STRICT units FROM leasehold.claims c WHERE c.name = p_name;
        IF units > p_of THEN
            outcome := 'wanted';
            RETURN;
        END IF;
        outcome := 'done';
        units := v_line.capacity;
        v_line.capacity := p_of;
        v_line := leasehold.settle(v_line, clock_timestamp());
        PERFORM leasehold.save(v_line);
    END IF;
END
$$;
