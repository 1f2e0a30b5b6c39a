-- The checking half of fences: a table, and functions for the user's own transaction. Arguments are
-- given with each function. Part of the store, and installed alone in databases that have data to
-- protect and no locks.

-- The greatest fence that `fence_check` has seen for each resource.
CREATE TABLE IF NOT EXISTS leasehold.guards (
    resource text   COLLATE "C" PRIMARY KEY,
    fence    bigint NOT NULL
);

-- The checking half of a fence, for the user's own transaction: remembers the greatest fence seen
-- for a resource and refuses a lower one, until the transaction ends on behalf of all others.
CREATE OR REPLACE FUNCTION leasehold.fence_check(resource text, fence bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_seen bigint;
BEGIN
    INSERT INTO leasehold.guards AS g VALUES (fence_check.resource, fence_check.fence)
        ON CONFLICT ON CONSTRAINT guards_pkey DO UPDATE SET fence = excluded.fence
        WHERE g.fence <= excluded.fence;
    IF NOT FOUND THEN
        SELECT g.fence INTO v_seen FROM leasehold.guards g
            WHERE g.resource = fence_check.resource;
        RAISE EXCEPTION 'fence % is old: % was seen for "%"', fence_check.fence, v_seen,
            fence_check.resource
            USING ERRCODE = '55000', HINT = 'the lease was lost; take the lock again';
    END IF;
END
$$;

-- Forgets a resource whose fences will never be checked again.
CREATE OR REPLACE FUNCTION leasehold.fence_forget(resource text)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM leasehold.guards g WHERE g.resource = fence_forget.resource;
    RETURN FOUND;
END
$$;
