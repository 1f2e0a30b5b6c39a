-- What `doctor` looks at. No arguments; one row, in the order that `examine.rs` reads it.
SELECT current_setting('server_version'),
    current_setting('server_version_num')::integer,
    current_setting('fsync'),
    pg_is_in_recovery(),
    current_setting('max_connections')::integer,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
    (SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold advisory'),
    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),
    current_setting('max_locks_per_transaction')::bigint
        * (current_setting('max_connections')::bigint
            + current_setting('max_prepared_transactions')::bigint),
    (SELECT ttl_ms FROM leasehold.advisory),
    floor(extract(epoch FROM clock_timestamp() - pg_postmaster_start_time()) * 1000)::bigint
