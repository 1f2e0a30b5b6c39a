-- Gives a lease back or leaves the line, and rings those who hold now.
--
-- KEYS  1 lock  2 line  3 order  4 expiry  5 fence
-- ARGV  1 the channel of events  2 the lock key's length, newline, lock key  3 token
-- Answers nothing but 1 for a lease that nobody waited for. Otherwise `released`, expired;
-- `expired`, expired; `taken`, expired, holder id, label.

local token = ARGV[3]

-- The shortest way: an exclusive lease with nobody behind it.
if redis.pcall('GET', KEYS[1]) == token then
  local alone = redis.pcall('GETDEL', KEYS[2])
  if type(alone) == 'string' then
    redis.call('DEL', KEYS[1])
    redis.call('PUBLISH', ARGV[1], 'released\n' .. ARGV[2] .. string.sub(alone, #token + 2))
    return 1
  end
  -- Anything but a line in that place is a failure, a right that is missing for instance.
  if type(alone) == 'table' and string.sub(alone.err, 1, 9) ~= 'WRONGTYPE' then return alone end
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
