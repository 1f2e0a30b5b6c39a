-- Takes a name from the claim that holds it, if its vote is at most this, or from a client of
-- another library.
--
-- KEYS  1 lock  2 line  3 order  4 expiry  5 fence  6 marker
-- ARGV  1 nothing  2 hint  3 the vote  4 `1` to take it from a client of another library
-- Answers `evicted`, us, holder id, label; both are empty if it was taken from nobody.

-- @time
-- @draw
-- @line

open()
local id, label = '', ''
if head and not below(ARGV[3], vote) or foreign and ARGV[4] == '1' then
  id, label = holder()
  local entry = head and call('HGET', LINE, head)
  call('DEL', LOCK)
  if entry then drop(head, entry) end
  if head then vacate() end
  foreign = false
  settle(ARGV[2])
end
return { 'evicted', us, id, label }
