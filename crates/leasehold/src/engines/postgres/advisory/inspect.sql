-- All advisory locks of this database, and what their sessions say about them. No arguments; a
-- row for each lock and claim, in the order that `view.rs` reads it.
SELECT l.pid,
    l.classid::bigint,
    l.objid::bigint,
    l.objsubid::smallint,
    l.granted,
    l.mode = 'ShareLock',
    a.application_name,
    c.name,
    c.holder,
    c.label,
    c.note,
    c.fence,
    -- An infinite time has no distance from another. Leasehold writes none, so there is no span.
    CASE WHEN isfinite(c.since) THEN
        floor(extract(epoch FROM clock_timestamp() - c.since) * 1000000)::bigint END,
    CASE WHEN isfinite(c.expires) THEN
        floor(extract(epoch FROM c.expires - clock_timestamp()) * 1000000)::bigint END,
    floor(extract(epoch FROM clock_timestamp() - coalesce(l.waitstart, a.state_change))
        * 1000000)::bigint
FROM pg_locks l
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN leasehold.advisory_claims c ON c.pid = l.pid AND c.class = l.classid::bigint
    AND c.object = l.objid::bigint AND c.kind = l.objsubid::smallint
    AND (a.backend_start IS NULL
        OR c.backend = floor(extract(epoch FROM a.backend_start) * 1000000)::bigint)
WHERE l.locktype = 'advisory'
    AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
    -- Whoever installs or begins.
    AND NOT (l.objsubid = 1 AND l.classid::bigint << 32 | l.objid::bigint
        = hashtextextended('leasehold.store', 7738))
ORDER BY l.granted DESC, l.pid, l.classid, l.objid, l.objsubid, c.fence
