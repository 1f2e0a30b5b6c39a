-- Gives a lease back or leaves the line, and rings those who hold now.
--
-- KEYS  1 lock  2 line  3 order  4 expiry  5 fence
-- ARGV  1 the channel of events  2 token
-- Answers `released`, expired; `expired`, expired; `taken`, expired, holder id, label.

local token = ARGV[2]

-- The shortest way: an exclusive lease with nobody behind it.
if redis.pcall('GET', KEYS[1]) == token then
  local alone = redis.pcall('GETDEL', KEYS[2])
  if type(alone) == 'string' then
    redis.call('DEL', KEYS[1])
    local fence, holder, label =
      string.match(alone, '^%x+\n(%d+)\n%d+\n%d+\n(%x+)\n[^\n]*\n([^\n]*)\n')
    redis.call('PUBLISH', ARGV[1], 'released\n' .. fence .. '\n' .. holder .. '\n' .. label .. '\n'
      .. #KEYS[1] .. '\n' .. KEYS[1])
    return { 'released', 0 }
  end
end

local time = redis.call('TIME')
-- @line

open()
if form == 'line' then
  local known = call('HGET', LINE, token)
  if known then
    local claim = read(known)
    tell(remove(token, claim) and 'released' or 'left', claim)
    settle()
    return { 'released', expired }
  end
end
local holder, label = first()
if label == '' then
  return { 'expired', expired }
end
return { 'taken', expired, holder, label }
