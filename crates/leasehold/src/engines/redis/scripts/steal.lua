-- Takes a name from its holders for a new exclusive claim, before those who wait. Each of these
-- gets a new place behind it, in their order. 0 among the fences stands for a client of another
-- library.
--
-- KEYS  1 lock  2 line  3 order  4 expiry  5 fence
-- ARGV  1 the channel of events  2 token  3 ttl in ms  4 the same and a while longer, for the
--       companions  5 the claim's text behind its number and the instant  6 the reason
--       7 and on: the fences of those who may lose the name
-- Answers what claim.lua answers without the clock. `out` if others hold: then nothing has changed.

local token, ttl, text_behind = ARGV[2], tonumber(ARGV[3]), ARGV[5]
local time = redis.call('TIME')
local us = time[1] .. string.sub('00000' .. time[2], -6)

-- As in the script for one claim.
local function number()
  local last = redis.call('SET', KEYS[5], us, 'GET')
  if last and (#last > #us or #last == #us and last >= us) then
    redis.call('SET', KEYS[5], last)
    redis.call('INCR', KEYS[5])
    return redis.call('GET', KEYS[5])
  end
  return us
end

-- @line

open(token)
if form == 'alone' and alone_token == token then
  -- Asked again, because the answer was lost.
  local left = math.max(call('PTTL', LOCK), ttl)
  call('PEXPIRE', LOCK, left)
  call('PEXPIRE', LINE, left + GRACE_MS)
  return { 'held', string.match(alone_claim, '^%d+'), left, expired }
end
if known then return refresh(token, ttl, ttl) end
if form ~= 'none' and cap ~= ALL then return { 'mismatch', cap, 0, expired } end

local named = {}
for i = 7, #ARGV do named[ARGV[i]] = true end
local holders = {}
if form == 'alone' then
  holders[1] = { token = alone_token, text = alone_claim }
else
  for _, place in ipairs(n > 0 and call('ZRANGE', ORDER, 0, n - 1) or {}) do
    local of = token_of(place)
    holders[#holders + 1] = { token = of, text = call('HGET', LINE, of) }
  end
end
local meant = not foreign or named['0']
for _, holder in ipairs(holders) do
  meant = meant and named[string.match(holder.text, '^%d+')]
end
if not meant then
  local holder, label = first()
  return { 'out', count + (foreign and 1 or 0), 0, expired, holder, label }
end

for _, holder in ipairs(holders) do
  tell('evicted', holder.text, ARGV[6])
  if form == 'line' then remove(holder.token, holder.text, true) end
end
local fence = number()
local claim = fence .. '\n' .. now_text .. '\n' .. text_behind
if form ~= 'line' or count == 0 then
  call('DEL', LINE, ORDER, EXPIRY)
  call('SET', LOCK, token, 'PX', ttl)
  call('SET', LINE, token .. '\n' .. claim, 'PX', ARGV[4])
  tell('granted', claim)
  return { 'held', fence, ttl, expired }
end
local waiting = call('ZRANGE', ORDER, 0, -1)
enter(token, claim, now + ttl, 'n', 1, 'u', ALL, 'h', token, 'g:' .. token, now_text)
call('SET', LOCK, token, 'PX', ttl)
keep(ttl)
tell('granted', claim)
for _, place in ipairs(waiting) do
  local waiter = token_of(place)
  local text = number() .. string.match(call('HGET', LINE, waiter), '^%d+(\n.*)$')
  call('HSET', LINE, waiter, text)
  call('ZREM', ORDER, place)
  call('ZADD', ORDER, '0', place_of(waiter, text))
  tell('queued', text)
end
return { 'held', fence, ttl, expired }
