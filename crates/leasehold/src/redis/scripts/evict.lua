-- Takes a name from whoever holds it, clients of other libraries among them.
--
-- KEYS  1 lock  2 line  3 order  4 expiry
-- ARGV  1 the channel of events  2 the reason
-- Answers expired, then holder id and label of each.

local time = redis.call('TIME')
-- @line

open('')
local evicted = {}
local function take(text)
  local holder, label = who(text)
  evicted[#evicted + 1] = holder
  evicted[#evicted + 1] = label
  tell('evicted', text, ARGV[2])
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
  for _, place in ipairs(n > 0 and call('ZRANGE', ORDER, 0, n - 1) or {}) do
    local token = token_of(place)
    local text = call('HGET', LINE, token)
    take(text)
    remove(token, text, true)
  end
  settle()
end
return { expired, unpack(evicted) }
