-- Enters the line of a name that somebody holds, for all of it; no row if the line is not like
-- that, or something else is to be done there. Not flushed. Prepared, for sessions of our own.
-- $1 name, $2 token, $3 units, which are the line's capacity, $4 holder, $5 label, $6 note,
-- $7 patience in microseconds, $8 bell
--
-- What is read of other claims may be as old as the statement, if it had to wait for the line:
-- then somebody is asked to come back a little early.
--
-- Plans are made while the tables are small, when every index seems as good as any other. So the
-- first expiry is asked for, and not whether one has passed, and a claim is found by its token with
-- a comparison of names that no index serves: there is but one index for each of these.
WITH line AS (
    UPDATE leasehold.lines l SET claims = l.claims + 1, arrived = l.arrived + 1
    WHERE l.name = $1 AND l.sole IS NULL AND l.capacity = $3 AND l.claims < 10000
        AND (SELECT min(c.expires) FROM leasehold.claims c WHERE c.name = $1)
            > statement_timestamp()
        AND NOT EXISTS (
            SELECT FROM leasehold.claims c WHERE c.token = $2 AND c.name IS NOT DISTINCT FROM $1)
        AND NOT EXISTS (SELECT FROM leasehold.watchers w WHERE w.until > statement_timestamp())
    RETURNING l.claims, l.arrived
)
INSERT INTO leasehold.claims
SELECT $1, leasehold.next_fence(), $2, $3, line.arrived, $4, $5, $6, NULL, clock_timestamp(), NULL,
    clock_timestamp() + $7 * interval '1 microsecond', $8
FROM line
RETURNING fence, (SELECT line.claims - 1 FROM line), leasehold.span_us(
        (SELECT max(c.expires) FROM leasehold.claims c WHERE c.name = $1), clock_timestamp()),
    set_config('synchronous_commit', 'off', true)
