-- Takes a claim out of the line, and hands it to the first who waits.
--
-- KEYS  1 lock  2 line  3 order  4 expiry  5 fence  6 marker
-- ARGV  1 token, or owner  2 hint
-- Answers `released`, us; `expired`, us; `taken`, us, holder id, label.

-- @time
-- @draw
local token, sub = ARGV[1], string.sub

-- The usual ways: the claim holds, and nobody waits, or the first who does is alive. Any dead ones
-- further back are found by whoever comes to them.
if redis.pcall('GET', KEYS[1]) == token then
  local head, known = unpack(redis.call('HMGET', KEYS[2], 'h', token))
  local place = head == token and known and redis.call('ZRANGE', KEYS[3], '0', '0')[1]
  if head == token and known and not place then
    redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
    return { 'released', us }
  end
  local next = place and sub(place, 21, 52)
  local lapses = next and redis.call('ZSCORE', KEYS[4], next)
  if lapses and lapses >= now_text then
    local vote = draw(ARGV[2])
    redis.call('ZREM', KEYS[3], place)
    redis.call('ZREM', KEYS[4], next)
    redis.call('HDEL', KEYS[2], token, 'o:' .. sub(known, 85, 116))
    redis.call('SET', KEYS[1], next, 'PXAT', lapses)
    redis.call('HSET', KEYS[2], 'h', next, 'v', vote, 'g', now_text)
    -- Others may hear it, so it does not tell the token: `bells.rs`.
    local number = sub('0000000000000000000' .. vote, -20)
    local bell = number .. redis.sha1hex(next) .. redis.sha1hex(number .. next)
    redis.call('PUBLISH', 'leasehold:mailbox:' .. sub(place, 53, 84), bell)
    return { 'released', us }
  end
end

-- @line

open()
if head == token then
  call('DEL', LOCK)
  vacate()
  if known then drop(token, known) end
  settle(ARGV[2])
  return { 'released', us }
end
if known then
  bury({ token })
  if not head then settle('0') end
  return { 'released', us }
end
local id, label = holder()
if label == '' then return { 'expired', us } end
return { 'taken', us, id, label }
