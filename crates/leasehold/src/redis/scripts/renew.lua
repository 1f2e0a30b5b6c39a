-- Keeps a claim alive. Never puts it back: a claim that is not in line stays out. Needs no memory,
-- so it works on a server that has none left.
--
-- KEYS  1 lock  2 line  3 order  4 expiry
-- ARGV  1 the channel of events  2 token  3 ttl in ms  4 the same and a while longer
--       5 patience in ms
-- Answers the server's clock, in seconds and microseconds, and what claim.lua answers.

local time = redis.call('TIME')
local token = ARGV[2]

-- The shortest way: an exclusive lease with nobody behind it. What is no string shows as nothing.
local holding, alone = unpack(redis.call('MGET', KEYS[1], KEYS[2]))
if holding == token and alone and string.sub(alone, 1, #token) == token then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
  return { time[1], time[2], string.match(alone, '^%d+', #token + 2) }
end

-- @line

open(token)
if known then
  return { time[1], time[2], refresh(token, ARGV[3], ARGV[5]) }
end
local count = form == 'line' and call('ZCARD', ORDER) or n
local holder, label = first()
local out = { 'out', count + (foreign and 1 or 0), 0, expired, holder, label }
return { time[1], time[2], out }
