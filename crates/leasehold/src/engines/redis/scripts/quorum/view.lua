-- Reads the line of one name and changes nothing.
--
-- KEYS  1 lock  2 line  3 order  4 expiry  5 fence  6 marker
-- Answers us, the ms left of a lock key that is somebody else's (or empty), then for each claim:
-- entry, vote (or empty if it waits), since when it holds or waits, when it lapses.
-- Answers `broken` where a key holds something that no script of ours writes.

-- @time
local lock = redis.pcall('GET', KEYS[1])
local top = redis.pcall('HMGET', KEYS[2], 'h', 'v', 'g')
-- A command on a key of another type answers with an error.
for _, answer in ipairs({ top, redis.pcall('ZCARD', KEYS[3]), redis.pcall('ZCARD', KEYS[4]) }) do
  if type(answer) == 'table' and answer.err then return 'broken' end
end
local left = redis.call('PTTL', KEYS[1])
local answer = { us, '' }
if top[1] and lock == top[1] then
  local entry = redis.call('HGET', KEYS[2], top[1])
  if entry then
    answer = { us, '', entry, top[2], top[3], string.format('%.0f', now + left) }
  end
elseif lock ~= false then
  answer[2] = left
end
local places = redis.call('ZRANGE', KEYS[3], 0, -1)
-- In pieces, because a call takes only so many arguments.
for from = 1, #places, 1000 do
  local tokens = {}
  for i = from, math.min(from + 999, #places) do
    tokens[#tokens + 1] = string.sub(places[i], 21, 52)
  end
  local entries = redis.call('HMGET', KEYS[2], unpack(tokens))
  local lapses = redis.call('ZMSCORE', KEYS[4], unpack(tokens))
  for i, entry in ipairs(entries) do
    if entry and lapses[i] and tonumber(lapses[i]) >= now then
      answer[#answer + 1] = entry
      answer[#answer + 1] = ''
      answer[#answer + 1] = string.sub(entry, 117, 129)
      answer[#answer + 1] = string.format('%.0f', lapses[i])
    end
  end
end
return answer
