-- Reads the line of one name and changes nothing.
--
-- KEYS  1 lock  2 line  3 order  4 expiry
-- Answers the instant in ms, what is at the lock key (`none`, `ours`, `foreign`) and its ms left,
-- the line's capacity, then for each claim in order: token, text, when it lapses, since when it holds (or empty).
-- Answers `broken` where a key holds something that no script of ours writes.

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local lock = redis.pcall('GET', KEYS[1])
local left = redis.call('PTTL', KEYS[1])
local kind = redis.call('TYPE', KEYS[2]).ok
local state = lock == false and 'none' or 'foreign'
for i = 3, 4 do
  local sorted = redis.call('TYPE', KEYS[i]).ok
  if sorted ~= 'zset' and sorted ~= 'none' then return 'broken' end
end

if kind == 'string' then
  local alone = redis.call('GET', KEYS[2])
  local token, text = string.match(alone, '^(%x+)\n(%d+\n.*)$')
  if not token then return 'broken' end
  if lock == token then state = 'ours' end
  local lapses = string.format('%.0f', now + left)
  return { now, state, left, '4294967295', token, text, lapses, string.match(text, '^%d+\n(%d+)') }
end
if kind ~= 'hash' then
  return kind == 'none' and { now, state, left, '4294967295' } or 'broken'
end

local head = redis.call('HMGET', KEYS[2], 'cap', 'h')
if not head[1] then return 'broken' end
if lock == head[2] then state = 'ours' end
local answer = { now, state, left, head[1] }
local places = redis.call('ZRANGE', KEYS[3], 0, -1)
-- In pieces, because a call takes only so many arguments.
for from = 1, #places, 1000 do
  local tokens, grants = {}, {}
  for i = from, math.min(from + 999, #places) do
    local token = string.sub(places[i], 21, 52)
    tokens[#tokens + 1] = token
    grants[#grants + 1] = 'g:' .. token
  end
  local texts = redis.call('HMGET', KEYS[2], unpack(tokens))
  local since = redis.call('HMGET', KEYS[2], unpack(grants))
  local lapses = redis.call('ZMSCORE', KEYS[4], unpack(tokens))
  for i, token in ipairs(tokens) do
    -- A key can be evicted or deleted. The next script that opens the line puts that right.
    if texts[i] and lapses[i] then
      answer[#answer + 1] = token
      answer[#answer + 1] = texts[i]
      answer[#answer + 1] = string.format('%.0f', lapses[i])
      answer[#answer + 1] = since[i] or ''
    end
  end
end
return answer
