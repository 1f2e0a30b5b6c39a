-- Letting fences go on above all that were ever given out, after a backup was restored.
--
-- p_above   a fence that must be exceeded too; 0 for none
-- p_now_us  the clock of whoever asks, in microseconds since 1970
--
-- A backup also takes back what an earlier call left behind. So the new fences begin at the clock,
-- and they are given out more slowly than it runs.

CREATE OR REPLACE FUNCTION leasehold.bump_epoch(
    p_above bigint, p_now_us bigint, OUT before bigint, OUT first bigint
) LANGUAGE plpgsql AS $$
DECLARE
    v_step bigint := leasehold.fence_of(17592186044416) - 17592186044416;
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    -- Two at once would set each other back.
    PERFORM pg_advisory_xact_lock(hashtextextended('leasehold.store', 7738));
    before := leasehold.fence_of(coalesce(pg_sequence_last_value('leasehold.arrivals'), 0) + 1);
    -- With room for what others are granted between these two lines.
    first := greatest(before + 1048576, p_above + 1, p_now_us,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    PERFORM setval('leasehold.arrivals', first - v_step, false);
END
$$;
