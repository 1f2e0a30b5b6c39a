-- Gives a semaphore another limit, and rings those who hold by that.
--
-- KEYS  1 lock  2 line  3 order  4 expiry
-- ARGV  1 the channel of events  2 the limit
-- Answers `done`, expired, the limit before; `unused`, expired, 0; `mismatch`, expired, capacity;
-- `held` or `wanted`, expired, how many.

local time = redis.call('TIME')
-- @line

open('')
local limit = tonumber(ARGV[2])
if form == 'none' and not foreign then return { 'unused', expired, 0 } end
if form == 'none' or cap == ALL then return { 'mismatch', expired, ALL } end
if u > limit then return { 'held', expired, u } end
local most = 0
for _, place in ipairs(call('ZRANGE', ORDER, n, -1)) do
  most = math.max(most, units_of(place))
end
if most > limit then return { 'wanted', expired, most } end
local before = cap
cap = limit
call('HSET', LINE, 'cap', ARGV[2])
settle()
return { 'done', expired, before }
