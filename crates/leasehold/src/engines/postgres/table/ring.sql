-- Rings for everything that `hand.sql` gave on in this session and nobody rang for yet; no row if
-- there is nothing. Those grants are flushed, this is not. Prepared, for sessions of our own.
-- No arguments.
SELECT pg_notify(
        'leasehold.bells.' || split_part(given.bell, ':', 1), split_part(given.bell, ':', 2)),
    set_config('leasehold_own.rings', '', false), set_config('synchronous_commit', 'off', true)
FROM unnest(string_to_array(ltrim(current_setting('leasehold_own.rings', true), ','), ','))
    AS given (bell)
