-- Ends a claim's tenure if its vote is at most this, and puts the claim back by its rank.
--
-- KEYS  1 lock  2 line  3 order  4 expiry  5 fence  6 marker
-- ARGV  1 token  2 the vote that is given up  3 hint  4 patience in ms
-- Answers as `stand` says.

-- @time
-- @draw
-- @line

open()
if head == token and known and not below(ARGV[2], vote) then
  call('DEL', LOCK)
  vacate()
  queue(ARGV[4])
  settle(ARGV[3])
end
return stand()
