-- What `doctor` looks at. No arguments; one row, in the order that `examine.rs` reads it.
SELECT current_setting('server_version'),
    current_setting('server_version_num')::integer,
    current_setting('synchronous_commit'),
    current_setting('fsync'),
    current_setting('full_page_writes'),
    pg_is_in_recovery(),
    current_setting('synchronous_standby_names'),
    (SELECT count(*) FROM pg_stat_replication),
    current_setting('max_connections')::integer,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
    (SELECT version FROM leasehold.store),
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::bigint
        FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid())
