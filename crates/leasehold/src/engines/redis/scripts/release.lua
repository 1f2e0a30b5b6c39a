-- Gives a lease back or leaves the line, and rings those who hold now.
--
-- KEYS  1 lock  2 line  3 order  4 expiry
-- ARGV  1 the channel of events  2 token
-- Answers nothing but 1 on the usual ways. Otherwise `released`, expired;
-- `expired`, expired; `taken`, expired, holder id, label.

local token = ARGV[2]

-- The shortest way: an exclusive lease with nobody behind it. What is no string shows as nothing.
local texts = redis.call('MGET', KEYS[1], KEYS[2])
local holding, alone = unpack(texts)
if holding == token then
  if alone then
    redis.call('DEL', KEYS[1], KEYS[2])
    redis.call('PUBLISH', ARGV[1], KEYS[1] .. '\0released\n' .. string.sub(alone, #token + 2))
    return 1
  end

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
      if left and came then
        redis.call('SET', KEYS[1], heir, 'PXAT', lapses)
        redis.call('ZREM', KEYS[3], mine)
        redis.call('ZREM', KEYS[4], token)
        redis.call('HDEL', KEYS[2], token, 'g:' .. token)
        redis.call('HSET', KEYS[2], 'h', heir, 'g:' .. heir, now)
        redis.call('PUBLISH', ARGV[1],
          KEYS[1] .. '\0released\n' .. left .. '\0granted\n' .. came)
        -- The bell is last: a server writes first to those it had something to say to last. Others
        -- may hear it, so it does not tell the token: `bells.rs`.
        local bell = sub(next, 1, 20) .. redis.sha1hex(heir) .. redis.sha1hex(sub(next, 1, 52))
        redis.call('PUBLISH', 'leasehold:mailbox:' .. sub(next, 53, 84), bell)
        return 1
      end
    end
  end
end

local time = redis.call('TIME')
-- @line

open(token, texts)
if known then
  remove(token, known, known_since)
  tell(known_since and 'released' or 'left', known)
  settle()
  return { 'released', expired }
end
local holder, label = first()
if label == '' then
  return { 'expired', expired }
end
return { 'taken', expired, holder, label }
