-- Prolongs a claim that was granted while it stood in line, and never ends it sooner; no row if it
-- was not granted, or something else is to be done there. It touches no more than its own row, and
-- does not wait for changes of the line. Flushed, and with it the grant. Prepared, for
-- sessions of our own.
-- $1 name, $2 token, $3 ttl in microseconds
UPDATE leasehold.claims c
SET expires = clock_timestamp()
    + greatest($3, leasehold.span_us(c.expires, clock_timestamp())) * interval '1 microsecond'
WHERE c.token = $2 AND c.name IS NOT DISTINCT FROM $1 AND c.granted IS NOT NULL
    AND c.expires > clock_timestamp()
    AND (SELECT min(o.expires) FROM leasehold.claims o WHERE o.name = $1) > statement_timestamp()
RETURNING c.fence, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    leasehold.span_us(c.expires, clock_timestamp())
