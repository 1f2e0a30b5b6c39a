-- Takes a name from whoever holds it, clients of other libraries among them.
--
-- KEYS  1 lock  2 line  3 order  4 expiry  5 fence  6 marker
-- ARGV  1 nothing  2 hint
-- Answers `evicted`, us, holder id, label; both are empty if nobody held it.

-- @time
-- @draw
-- @line

open()
local id, label = holder()
if head or foreign then
  local entry = head and call('HGET', LINE, head)
  call('DEL', LOCK)
  if entry then drop(head, entry) end
  if head then vacate() end
  foreign = false
  settle(ARGV[2])
end
return { 'evicted', us, id, label }
