-- Takes a claim out of the line, and hands it to the first who waits.
--
-- KEYS  1 lock  2 line  3 order  4 expiry  5 fence  6 marker
-- ARGV  1 token, or owner  2 hint
-- Answers `released`, us; `expired`, us; `taken`, us, holder id, label.

-- @time
-- @line

open()
if head == token then
  call('DEL', LOCK)
  vacate()
  if known then drop(token, known) end
  settle(ARGV[2])
  return { 'released', us }
end
if known then
  bury({ token })
  if not head then settle('0') end
  return { 'released', us }
end
local id, label = holder()
if label == '' then return { 'expired', us } end
return { 'taken', us, id, label }
