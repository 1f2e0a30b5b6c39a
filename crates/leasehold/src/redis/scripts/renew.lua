-- Keeps a claim alive. Never puts it back: a claim that is not in line stays out. Needs no memory,
-- so it works on a server that has none left.
--
-- KEYS  1 lock  2 line  3 order  4 expiry  5 fence
-- ARGV  1 the channel of events  2 the lock key's length, newline, lock key
--       3 token  4 ttl in ms  5 the same and a while longer  6 patience in ms
-- Answers the server's clock, in seconds and microseconds, and what claim.lua answers.

local time = redis.call('TIME')

-- The shortest way: an exclusive lease with nobody behind it.
if redis.pcall('GET', KEYS[1]) == ARGV[3] then
  local alone = redis.pcall('GET', KEYS[2])
  if type(alone) == 'string' and string.sub(alone, 1, #ARGV[3]) == ARGV[3] then
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
    redis.call('PEXPIRE', KEYS[2], ARGV[5])
    return { time[1], time[2], string.match(alone, '^%d+', #ARGV[3] + 2) }
  end
end

-- @line

open(ARGV[3])
if known then
  return { time[1], time[2], refresh(ARGV[3], ARGV[4], ARGV[6]) }
end
local count = form == 'line' and call('ZCARD', ORDER) or n
local holder, label = first()
local out = { 'out', count + (foreign and 1 or 0), 0, expired, holder, label }
return { time[1], time[2], out }
