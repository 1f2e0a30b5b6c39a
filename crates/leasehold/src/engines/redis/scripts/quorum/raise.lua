-- Raises the vote of a claim's tenure, if the claim holds with a vote up to the fence.
--
-- KEYS  1 lock  2 line  3 order  4 expiry  5 fence  6 marker
-- ARGV  1 token  2 fence  3 ttl in ms
-- Answers as `stand` says.

-- @time
-- @draw
-- @line

open()
if head == token then
  if not below(ARGV[2], vote) then
    vote = ARGV[2]
    call('HSET', LINE, 'v', vote)
    raise_counter(vote)
  end
  refresh(ARGV[3], ARGV[3])
end
return stand()
