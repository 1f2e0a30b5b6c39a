-- Locks for clients that speak SQL and nothing else, on the same lines as the library's. Arguments
-- are given with each function.
--
-- They run in the caller's transaction: what they do is seen by others, and waited for by whoever
-- asks for the same name, when that is committed. Times are those of the call all the same.
--
-- A call that answers false locks no row beyond itself: it takes back all it did, in a block of its
-- own. Otherwise an open transaction would keep the holder from renewing its lease.

-- The token of a plain holder's claim. It is no secret: whoever may call these functions names the
-- holder he wants to be.
CREATE OR REPLACE FUNCTION leasehold.plain_token(p_holder_id text)
RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT decode(md5('leasehold plain holder ' || p_holder_id), 'hex')
$$;

-- Checks what a plain client gave, and returns its time to live in microseconds.
CREATE OR REPLACE FUNCTION leasehold.plain_ttl_us(
    p_lock_name text, p_holder_id text, p_ttl_seconds double precision
) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_lock_name IS NULL OR octet_length(p_lock_name) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'a lock name must have 1 to 512 bytes' USING ERRCODE = '22023';
    ELSIF p_holder_id IS NULL OR octet_length(p_holder_id) NOT BETWEEN 1 AND 300 THEN
        RAISE EXCEPTION 'a holder id must have 1 to 300 bytes' USING ERRCODE = '22023';
    ELSIF p_ttl_seconds IS NULL OR NOT p_ttl_seconds BETWEEN 0.1 AND 86400 THEN
        RAISE EXCEPTION 'a ttl must be between 0.1 and 86400 seconds' USING ERRCODE = '22023';
    END IF;
    RETURN ceil(p_ttl_seconds * 1000000);
END
$$;

-- Takes the lock, or prolongs it for the holder that has it; false if somebody else has it or
-- waits for it. Never waits for a holder.
CREATE OR REPLACE FUNCTION leasehold.acquire_lock(
    p_lock_name text, p_holder_id text, p_ttl_seconds double precision DEFAULT 30,
    p_metadata jsonb DEFAULT '{}'
) RETURNS boolean LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off AS $$
DECLARE
    v_ttl_us bigint := leasehold.plain_ttl_us(p_lock_name, p_holder_id, p_ttl_seconds);
    v_token bytea := leasehold.plain_token(p_holder_id);
    v_note text := CASE WHEN p_metadata = '{}' THEN '' ELSE coalesce(p_metadata::text, '') END;
    v_standing text;
BEGIN
    IF octet_length(v_note) > 4096 THEN
        RAISE EXCEPTION 'metadata may have up to 4096 bytes; this has %', octet_length(v_note)
            USING ERRCODE = '22023';
    END IF;
    BEGIN
        SELECT c.standing INTO v_standing FROM leasehold.claim(
            p_lock_name, v_token, 4294967295, 4294967295, v_token,
            regexp_replace(p_holder_id, '[[:cntrl:]]', '?', 'g'), v_note, v_ttl_us, v_ttl_us,
            false, 0, p_holder_id) c;
        IF v_standing IN ('out', 'full') THEN
            RAISE EXCEPTION USING ERRCODE = 'LH002', MESSAGE = 'the lock is not free';
        END IF;
    EXCEPTION WHEN SQLSTATE 'LH002' THEN
        RETURN false;
    END;
    IF v_standing = 'mismatch' THEN
        RAISE EXCEPTION 'the lock "%" is in use as a semaphore', p_lock_name
            USING ERRCODE = '55000';
    END IF;
    RETURN v_standing = 'held';
END
$$;

-- Prolongs a lock; false if this holder does not have it any more.
CREATE OR REPLACE FUNCTION leasehold.extend_lock(
    p_lock_name text, p_holder_id text, p_ttl_seconds double precision DEFAULT 30
) RETURNS boolean LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off AS $$
DECLARE
    v_ttl_us bigint := leasehold.plain_ttl_us(p_lock_name, p_holder_id, p_ttl_seconds);
    v_token bytea := leasehold.plain_token(p_holder_id);
BEGIN
    BEGIN
        PERFORM leasehold.enter(p_lock_name);
        UPDATE leasehold.claims c
            SET expires = greatest(
                c.expires, clock_timestamp() + v_ttl_us * interval '1 microsecond')
            WHERE (c.token, c.name) BETWEEN (v_token, p_lock_name) AND (v_token, p_lock_name);
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'LH002', MESSAGE = 'the lock is not held';
        END IF;
    EXCEPTION WHEN SQLSTATE 'LH002' THEN
        RETURN false;
    END;
    RETURN true;
END
$$;

-- Gives a lock back; false if this holder does not have it any more.
CREATE OR REPLACE FUNCTION leasehold.release_lock(p_lock_name text, p_holder_id text)
RETURNS boolean LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off AS $$
DECLARE
    v_line leasehold.lines;
    v_left boolean;
BEGIN
    BEGIN
        v_line := leasehold.enter(p_lock_name);
        IF v_line.name IS NOT NULL THEN
            SELECT l.o_left INTO v_left
                FROM leasehold.leave(v_line, leasehold.plain_token(p_holder_id)) l;
        END IF;
        IF v_left IS NOT true THEN
            RAISE EXCEPTION USING ERRCODE = 'LH002', MESSAGE = 'the lock is not held';
        END IF;
    EXCEPTION WHEN SQLSTATE 'LH002' THEN
        RETURN false;
    END;
    RETURN true;
END
$$;

-- The locks that are held now, the library's among them.
CREATE OR REPLACE VIEW leasehold.distributed_locks AS
    SELECT f.name AS lock_name,
        coalesce(f.plain, f.label) AS holder_id,
        coalesce(f.granted, f.joined) AS acquired_at,
        f.expires AS expires_at,
        -- Behind the text of a note stand facts of the command; see `facts.rs`.
        CASE WHEN split_part(f.note, E'\x1e', 1) = '' THEN '{}'::jsonb
            WHEN f.plain IS NOT NULL THEN f.note::jsonb
            ELSE jsonb_build_object('note', split_part(f.note, E'\x1e', 1)) END AS metadata
    FROM (
        SELECT e.*, sum(e.units) OVER (PARTITION BY e.name ORDER BY e.fence) <= e.capacity AS holds
        FROM leasehold.everybody e WHERE e.expires > clock_timestamp()) f
    WHERE f.holds;

INSERT INTO leasehold.store (version, store_id)
    VALUES (1, uuid_send(gen_random_uuid())) ON CONFLICT DO NOTHING;
COMMIT;
