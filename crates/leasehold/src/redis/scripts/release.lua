-- Gives a lease back or leaves the line, and rings those who hold now.
--
-- KEYS  1 lock  2 line  3 order  4 expiry  5 fence
-- ARGV  1 the channel of events  2 the lock key's length, newline, lock key  3 token
-- Answers nothing but 1 on the usual ways. Otherwise `released`, expired;
-- `expired`, expired; `taken`, expired, holder id, label.

local token = ARGV[3]

-- The shortest way: an exclusive lease with nobody behind it.
if redis.pcall('GET', KEYS[1]) == token then
  local alone = redis.pcall('GETDEL', KEYS[2])
  if type(alone) == 'string' then
    redis.call('DEL', KEYS[1])
    redis.call('PUBLISH', ARGV[1], 'released\n' .. ARGV[2] .. string.sub(alone, #token + 2))
    return 1
  end
  -- Anything but a line in that place is a failure, a right that is missing for instance.
  if type(alone) == 'table' and string.sub(alone.err, 1, 9) ~= 'WRONGTYPE' then return alone end

  -- The usual way with others behind it: the next one is exclusive too, and alive. Any dead ones
  -- further back are found by whoever comes to them.
  local sub = string.sub
  local mine, next = unpack(redis.call('ZRANGE', KEYS[3], '0', '1'))
  if next and sub(mine, 21, 52) == token and sub(next, 85) == '4294967295' then
    local time = redis.call('TIME')
    local now = time[1] .. sub('00000' .. time[2], -6, -4)
    local heir = sub(next, 21, 52)
    local lapses = redis.call('ZSCORE', KEYS[4], heir)
    if lapses and lapses > now then
      local left, came = unpack(redis.call('HMGET', KEYS[2], token, heir))
      redis.call('SET', KEYS[1], heir, 'PXAT', lapses)
      redis.call('ZREM', KEYS[3], mine)
      redis.call('ZREM', KEYS[4], token)
      redis.call('HDEL', KEYS[2], token, 'g:' .. token)
      redis.call('HSET', KEYS[2], 'h', heir, 'g:' .. heir, now)
      redis.call('PUBLISH', 'leasehold:mailbox:' .. sub(next, 53, 84), sub(next, 1, 52))
      redis.call('PUBLISH', ARGV[1], 'released\n' .. ARGV[2] .. sub(left, #mine + 2))
      redis.call('PUBLISH', ARGV[1], 'granted\n' .. ARGV[2] .. sub(came, #next + 2))
      return 1
    end
  end
end

local time = redis.call('TIME')
-- @line

open(token)
if known then
  local place, text = parted(known)
  remove(token, place, known_since)
  tell(known_since and 'released' or 'left', text)
  settle()
  return { 'released', expired }
end
local holder, label = first()
if label == '' then
  return { 'expired', expired }
end
return { 'taken', expired, holder, label }
