-- Writes down what sessions have and wait for.
-- $1 ids, $2 pids, $3 backends, $4 classes, $5 objects, $6 kinds, $7 names, $8 holders, $9 labels,
-- $10 notes, $11 fences (0 while waiting), $12 ages and $13 what is left, in microseconds.
INSERT INTO leasehold.advisory_claims AS c
    (id, pid, backend, class, object, kind, name, holder, label, note, fence, since, expires)
SELECT n.id, n.pid, n.backend, n.class, n.object, n.kind, n.name, n.holder, n.label, n.note,
    n.fence, clock_timestamp() - n.age_us * interval '1 microsecond',
    clock_timestamp() + n.left_us * interval '1 microsecond'
FROM unnest($1::bigint[], $2::integer[], $3::bigint[], $4::bigint[], $5::bigint[], $6::smallint[],
    $7::text[], $8::bytea[], $9::text[], $10::text[], $11::bigint[], $12::bigint[], $13::bigint[])
    AS n (id, pid, backend, class, object, kind, name, holder, label, note, fence, age_us, left_us)
ON CONFLICT (id) DO UPDATE
SET fence = excluded.fence, since = excluded.since, expires = excluded.expires
