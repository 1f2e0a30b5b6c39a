-- The node's clock: `us` in microseconds, `now_text` and `now` in milliseconds.
--
-- Put into the other scripts of this folder where they say so.

local time = redis.call('TIME')
local us = time[1] .. string.sub('00000' .. time[2], -6)
local now_text = string.sub(us, 1, -4)
local now = tonumber(now_text)
