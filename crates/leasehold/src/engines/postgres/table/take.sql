-- Takes a name that nobody is in line for; no row if somebody is. Prepared, for sessions of our
-- own.
-- $1 name, $2 token, $3 units, $4 capacity, $5 holder, $6 label, $7 note, $8 ttl in microseconds,
-- $9 bell
INSERT INTO leasehold.lines AS l VALUES (
    $1, $4, 1, 1, $3, 0, 1, clock_timestamp() + ($8 + 60000000) * interval '1 microsecond', $2,
    leasehold.next_fence(), $5, $6, $7, NULL, clock_timestamp(),
    clock_timestamp() + $8 * interval '1 microsecond', $9)
ON CONFLICT DO NOTHING
-- As many lines are looked after as new ones come, now and then in a row: nobody else looks after
-- lines that nobody asks about.
RETURNING CASE WHEN ((pg_sequence_last_value('leasehold.arrivals') # l.fence) & 16777215) = 0
        AND NOT EXISTS (SELECT FROM leasehold.watchers w WHERE w.until > clock_timestamp())
    THEN l.fence ELSE leasehold.taken(l.name, l.fence, l.holder, l.label) END,
    CASE WHEN random() < 0.05 THEN leasehold.sweep(40) END
