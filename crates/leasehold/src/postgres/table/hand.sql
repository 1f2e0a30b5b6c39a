-- Gives a lease back that is alone in holding its name, or a part of it, to the next in line, who
-- wants all of it; no row if it is not like that, or something else is to be done. Not flushed.
-- Prepared, for sessions of our own.
-- $1 name, $2 token
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
    RETURNING c.fence, c.bell, mine.fence AS mine
), gone AS (
    DELETE FROM leasehold.claims c USING granted WHERE c.name = $1 AND c.fence = granted.mine
)
UPDATE leasehold.lines l
SET claims = l.claims - 1, held_units = l.capacity, last_held = granted.fence FROM granted
WHERE l.name = $1
RETURNING CASE WHEN granted.bell <> 0
        THEN pg_notify('leasehold.bells.' || (granted.bell >> 40), to_hex(granted.bell)) END,
    set_config('synchronous_commit', 'off', true)
