-- Gives a lease back that is alone in holding its name, or a part of it, to the next in line, who
-- wants all of it; no row if it is not like that, or something else is to be done. Flushed, and
-- with it the grant. Prepared, for sessions of our own.
-- $1 name, $2 token
--
-- The grant is told by `ring.sql`, which is sent right behind this and finds in the session whom to
-- tell what. Here it would hold the lock of all notifications until the flush is done. Others that
-- share the session may have come in between, so what is there is added to; what nobody rang for
-- long is dropped. The proof shows whoever knows the claim's token, and nobody else, that the bell
-- is of one who reads it in the table.
--
-- If the statement had to wait for the line's lock, what it reads of claims is older than that.
-- Whoever came meanwhile is behind those who are seen. If anybody left meanwhile, more have left
-- than are known of: then nothing is done here. Claims that have expired further down are left to
-- whoever comes next; they are in nobody's way.
--
-- Claims are found by their tokens, with a comparison of names that no index serves: plans are made
-- while the tables are small, when every index that begins with a name seems as good as any other,
-- and with most of them a claim is found by a walk along its whole line.
WITH line AS (
    UPDATE leasehold.lines l
    SET claims = l.claims - 1, held_units = l.capacity, last_held = next.fence
    FROM leasehold.claims mine, LATERAL (
        SELECT c.fence, c.token, c.units, c.granted, c.expires FROM leasehold.claims c
        WHERE c.name = $1 AND c.fence > mine.fence ORDER BY c.fence LIMIT 1) next
    WHERE l.name = $1 AND l.sole IS NULL AND l.held = 1
        AND l.arrived - l.claims = (
            SELECT seen.arrived - seen.claims FROM leasehold.lines seen WHERE seen.name = $1)
        AND mine.token = $2 AND mine.name IS NOT DISTINCT FROM $1 AND mine.granted IS NOT NULL
        AND mine.expires > clock_timestamp()
        AND next.granted IS NULL AND next.units = l.capacity AND next.expires > clock_timestamp()
        AND NOT EXISTS (SELECT FROM leasehold.watchers w WHERE w.until > statement_timestamp())
    RETURNING next.token AS next
), gone AS (
    DELETE FROM leasehold.claims c
    WHERE c.token = $2 AND c.name IS NOT DISTINCT FROM $1 AND EXISTS (SELECT FROM line)
)
UPDATE leasehold.claims c SET granted = clock_timestamp()
WHERE c.token = (SELECT line.next FROM line) AND c.name IS NOT DISTINCT FROM $1
RETURNING CASE WHEN c.bell <> 0 THEN set_config('leasehold_own.rings',
    CASE WHEN length(current_setting('leasehold_own.rings', true)) < 8000
        THEN current_setting('leasehold_own.rings', true) ELSE '' END
    || ',' || (c.bell >> 40) || ':' || to_hex(c.bell) || '.' || c.fence || '.'
    || left(encode(sha256(c.token || int8send(c.fence)), 'hex'), 32), false) END
