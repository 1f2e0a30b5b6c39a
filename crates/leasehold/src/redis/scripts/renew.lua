-- Keeps a claim alive. Never puts it back: a claim that is not in line stays out. Needs no memory,
-- so it works on a server that has none left.
--
-- KEYS  1 lock  2 line  3 order  4 expiry  5 fence
-- ARGV  1 the channel of events  2 token  3 ttl in ms  4 patience in ms
-- Answers as claim.lua does.

local token, ttl = ARGV[2], tonumber(ARGV[3])

-- The shortest way: an exclusive lease with nobody behind it.
if redis.pcall('GET', KEYS[1]) == token then
  local alone = redis.pcall('GET', KEYS[2])
  if type(alone) == 'string' and string.sub(alone, 1, #token) == token then
    redis.call('PEXPIRE', KEYS[1], ttl)
    redis.call('PEXPIRE', KEYS[2], ttl + 600000)
    return { 'held', string.match(alone, '^%d+', #token + 2), ttl, 0 }
  end
end

local time = redis.call('TIME')
-- @line

open()
if form == 'line' then
  local known = call('HGET', LINE, token)
  if known then return refresh(token, known, ttl, ARGV[4]) end
end
local count = form == 'alone' and 1 or call('ZCARD', ORDER)
local holder, label = first()
return { 'out', count + (foreign and 1 or 0), 0, expired, holder, label }
