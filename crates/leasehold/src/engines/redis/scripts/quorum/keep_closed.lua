-- Lets a claim that holds stay for a while under a token that no client knows, which is also its
-- owner: the old owner may name another claim of this line by then. A claim that waits here is taken
-- out of the line, and counts as not there.
--
-- KEYS  1 lock  2 line  3 order  4 expiry  5 fence  6 marker
-- ARGV  1 token, or owner  2 how long it stays in ms  3 the new token
-- Answers as `leave.lua` does.

-- @time
-- @draw
-- @line

open()
if head == token and known then
  local entry = sub(known, 1, 20) .. ARGV[3] .. sub(known, 53, 84) .. ARGV[3] .. sub(known, 117)
  call('HSET', LINE, 'h', ARGV[3], ARGV[3], entry)
  drop(token, known)
  call('SET', LOCK, ARGV[3], 'PX', ARGV[2])
  stay(LINE, ARGV[2])
  return { 'released', us }
end
if known then bury({ token }) end
if not head then settle('0') end
local id, label = holder()
if label == '' then return { 'expired', us } end
return { 'taken', us, id, label }
