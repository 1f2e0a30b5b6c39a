-- Takes a name from the claims that hold it with one of these fences. 0 stands for a client of
-- another library.
--
-- KEYS  1 lock  2 line  3 order  4 expiry
-- ARGV  1 the channel of events  2 the reason  3 and on: the fences
-- Answers expired, then holder id and label of each.

local time = redis.call('TIME')
-- @line

open('')
local evicted = {}
local named = {}
for i = 3, #ARGV do named[ARGV[i]] = true end
local function is_named(text) return named[string.match(text, '^%d+')] end
local function take(text)
  local holder, label = who(text)
  evicted[#evicted + 1] = holder
  evicted[#evicted + 1] = label
  tell('evicted', text, ARGV[2])
end
if foreign and named['0'] then
  evicted = { '', 'foreign' }
  call('DEL', LOCK)
  foreign = false
elseif form == 'alone' and is_named(alone_claim) then
  take(alone_claim)
  call('DEL', LOCK, LINE)
end
if form == 'line' then
  for _, place in ipairs(n > 0 and call('ZRANGE', ORDER, 0, n - 1) or {}) do
    local token = token_of(place)
    local text = call('HGET', LINE, token)
    if is_named(text) then
      take(text)
      remove(token, text, true)
    end
  end
  settle()
end
return { expired, unpack(evicted) }
