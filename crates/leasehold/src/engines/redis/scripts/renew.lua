-- Keeps a claim alive. Never puts it back: a claim that is not in line stays out. A lease never ends
-- sooner by it. Needs no memory, so it works on a server that has none left.
--
-- KEYS  1 lock  2 line  3 order  4 expiry
-- ARGV  1 the channel of events  2 token  3 ttl in ms  4 the same and a while longer
--       5 patience in ms
-- Answers the server's clock, in seconds and microseconds, and what claim.lua answers.

local time = redis.call('TIME')
local token = ARGV[2]

-- The shortest way: an exclusive lease with nobody behind it. What is no string shows as nothing.
local texts = redis.call('MGET', KEYS[1], KEYS[2])
local holding, alone = unpack(texts)
if holding == token and alone and string.sub(alone, 1, #token) == token then
  local fence = string.match(alone, '^%d+', #token + 2)
  local left = redis.call('PTTL', KEYS[1])
  if left > tonumber(ARGV[3]) then
    -- Another client may count on that end.
    return { time[1], time[2], { 'held', fence, left, 0 } }
  end
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
  return { time[1], time[2], fence }
end

-- @line

open(token, texts)
if known then
  return { time[1], time[2], refresh(token, ARGV[3], ARGV[5]) }
end
local holder, label = first()
local out = { 'out', count + (foreign and 1 or 0), 0, expired, holder, label }
return { time[1], time[2], out }
