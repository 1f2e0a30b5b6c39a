-- Gives a lease back that nobody else is in line with; no row if that is not so. Not flushed.
-- Prepared, for sessions of our own.
-- $1 name, $2 token
--
-- Tokens are compared so that the server does not see that there must be one: else the index of
-- such lines by holder seems as good as that of names while there are few, and all of it is read.
DELETE FROM leasehold.lines l WHERE l.name = $1 AND coalesce(l.sole = $2, false)
RETURNING CASE WHEN l.expires > clock_timestamp()
        AND NOT EXISTS (SELECT FROM leasehold.watchers w WHERE w.until > clock_timestamp())
    THEN true ELSE leasehold.parted(l.name, l.fence, l.holder, l.label, l.expires) END,
    set_config('synchronous_commit', 'off', true)
