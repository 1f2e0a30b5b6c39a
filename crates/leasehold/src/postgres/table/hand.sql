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
-- Whoever came meanwhile is behind those who are seen. Should this lease have ended meanwhile, the
-- next in line was granted with it, or left too: then no row is found to be granted.
WITH line AS MATERIALIZED (
    SELECT l.capacity FROM leasehold.lines l
    WHERE l.name = $1 AND l.sole IS NULL AND l.held = 1 AND l.claims > 1
        AND NOT EXISTS (SELECT FROM leasehold.watchers w WHERE w.until > now())
        AND NOT EXISTS (
            SELECT FROM leasehold.claims c WHERE c.name = $1 AND c.expires <= now())
    FOR UPDATE
), mine AS MATERIALIZED (
    SELECT c.fence, line.capacity FROM line, leasehold.claims c
    WHERE c.token = $2 AND c.name = $1 AND c.granted IS NOT NULL AND c.expires > clock_timestamp()
), granted AS (
    UPDATE leasehold.claims c SET granted = clock_timestamp() FROM mine
    WHERE c.name = $1 AND c.fence = (
            SELECT n.fence FROM leasehold.claims n
            WHERE n.name = $1 AND n.fence > (SELECT mine.fence FROM mine)
            ORDER BY n.fence LIMIT 1)
        AND c.granted IS NULL AND c.units = mine.capacity AND c.expires > clock_timestamp()
    RETURNING c.fence, c.bell, mine.fence AS mine,
        left(encode(sha256(c.token || int8send(c.fence)), 'hex'), 32) AS proof
), gone AS (
    DELETE FROM leasehold.claims c USING granted WHERE c.name = $1 AND c.fence = granted.mine
)
UPDATE leasehold.lines l
SET claims = l.claims - 1, held_units = l.capacity, last_held = granted.fence FROM granted
WHERE l.name = $1
RETURNING granted.bell, granted.fence, granted.proof,
    CASE WHEN granted.bell <> 0 THEN set_config('leasehold_own.rings',
        CASE WHEN length(current_setting('leasehold_own.rings', true)) < 8000
            THEN current_setting('leasehold_own.rings', true) ELSE '' END
        || ',' || (granted.bell >> 40) || ':' || to_hex(granted.bell) || '.' || granted.fence
        || '.' || granted.proof, false) END
