-- Takes a name from whoever holds it, clients of other libraries among them.
--
-- KEYS  1 lock  2 line  3 order  4 expiry  5 fence
-- ARGV  1 the channel of events  2 the lock key's length, newline, lock key  3 the reason
-- Answers expired, then holder id and label of each.

local time = redis.call('TIME')
-- @line

open()
local evicted = {}
local function take(text)
  local claim = read(text)
  evicted[#evicted + 1] = claim.holder
  evicted[#evicted + 1] = claim.label
  tell('evicted', claim, ARGV[3])
  return claim
end
if foreign then
  evicted = { '', 'foreign' }
  call('DEL', LOCK)
  foreign = false
elseif form == 'alone' then
  take(alone_claim)
  call('DEL', LOCK, LINE)
end
if form == 'line' then
  for _, member in ipairs(n > 0 and call('ZRANGE', ORDER, 0, n - 1) or {}) do
    local token = string.match(member, '^%d+:(%x+):')
    remove(token, take(call('HGET', LINE, token)))
  end
  settle()
end
return { expired, unpack(evicted) }
