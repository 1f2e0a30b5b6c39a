-- Starts a claim's time anew; never puts it back.
--
-- KEYS  1 lock  2 line  3 order  4 expiry  5 fence  6 marker
-- ARGV  1 token, or owner  2 ttl in ms  3 patience in ms
-- Answers as `stand` says.

-- @time
-- @draw
-- @line

open()
refresh(ARGV[2], ARGV[3])
return stand()
