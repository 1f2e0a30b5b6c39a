-- Joins the line, asks how a claim stands, or confirms that it holds.
--
-- KEYS  1 lock  2 line  3 order  4 expiry  5 fence
-- ARGV  1 the channel of events  2 token  3 ttl in ms
--       4 the same and a while longer, for the companions
--       5 the claim's text behind its number and the instant
--       6 `x` for an exclusive claim, else `-`; units, capacity, patience in ms, and `join` to
--         stand in line when it cannot hold at once, each with a space before
-- Answers the fence of a claim that holds at once for its whole ttl. Otherwise `held`, fence, ms
-- left, expired; `queued`, ahead, retry in ms, expired, fence; `out`, ahead, retry in ms, expired,
-- holder id, label; `mismatch`, capacity, 0, expired; `full`. One that was in line already has
-- the server's clock in microseconds behind `held` or `queued` and the rest.
--
-- Arguments are used as the texts they are, and are few: turning numbers into text is what costs
-- most here, and each argument costs the server and the client as much as half a command.

local time = redis.call('TIME')
local token, text_behind, way = ARGV[2], ARGV[5], ARGV[6]
local exclusive = string.byte(way) == 120
local us = time[1] .. string.sub('00000' .. time[2], -6)

-- The next number: the server's clock in microseconds, or one more than the last, whichever is
-- greater. As text, because numbers here are exact only up to 2^53.
local function number()
  local last = redis.call('SET', KEYS[5], us, 'GET')
  if last and (#last > #us or #last == #us and last >= us) then
    redis.call('SET', KEYS[5], last)
    redis.call('INCR', KEYS[5])
    return redis.call('GET', KEYS[5])
  end
  return us
end

-- The shortest way: an exclusive claim on a name that nobody uses.
local holding = exclusive and redis.pcall('SET', KEYS[1], token, 'NX', 'GET', 'PX', ARGV[3])
if exclusive and not holding then
  local fence = number()
  local text = fence .. '\n' .. string.sub(us, 1, -4) .. '\n' .. text_behind
  if redis.call('SET', KEYS[2], token .. '\n' .. text, 'NX', 'PX', ARGV[4]) then
    redis.call('PUBLISH', ARGV[1], KEYS[1] .. '\0granted\n' .. text)
    return fence
  end
  -- Others are in line although nobody holds at this moment.
  redis.call('DEL', KEYS[1])
end
-- Anything but a foreign value in that place is a failure, a right that is missing for instance.
if type(holding) == 'table' and string.sub(holding.err, 1, 9) ~= 'WRONGTYPE' then return holding end

-- The usual way with others before it: an exclusive claim behind an exclusive lease that lives.
-- What is short in a text of fixed widths stands where it stands.
local sub = string.sub
if exclusive and holding and sub(way, -4) == 'join' then
  local head = redis.pcall('HMGET', KEYS[2], 'u', 'h', token)
  if head[1] == '4294967295' and not head[3] and holding == head[2] then
    local now = sub(us, 1, -4)
    local count = redis.call('ZCARD', KEYS[3])
    local soonest = redis.call('ZRANGE', KEYS[4], '0', '0', 'WITHSCORES')[2]
    if soonest and soonest >= now and count > 0 and count < 10000 then
      -- Everybody is before it, and the last of them to lapse lets it hold.
      local last = redis.call('ZREVRANGE', KEYS[4], '0', '0', 'WITHSCORES')[2]
      local fence = number()
      local text = fence .. '\n' .. now .. '\n' .. text_behind
      local place = sub('0000000000000000000' .. fence, -20) .. token .. sub(text_behind, 45, 76)
        .. '4294967295'
      local patience = string.match(way, '^x %d+ %d+ (%d+)')
      redis.call('HSET', KEYS[2], token, text)
      redis.call('ZADD', KEYS[3], '0', place)
      redis.call('ZADD', KEYS[4], string.format('%d', now + patience), token)
      -- Not left to heartbeats: in a busy line nobody waits for long enough to send one.
      if redis.call('PTTL', KEYS[2]) < patience + 300000 then
        for i = 2, 4 do redis.call('PEXPIRE', KEYS[i], patience + 600000) end
      end
      redis.call('PUBLISH', ARGV[1], KEYS[1] .. '\0queued\n' .. text)
      return { 'queued', count, last - now, 0, fence }
    end
  end
end

-- @line

local ttl = tonumber(ARGV[3])
local units, capacity, patience, join = string.match(way, '^. (%d+) (%d+) (%d+) ?(%a*)$')
units, capacity, patience, join =
  tonumber(units), tonumber(capacity), tonumber(patience), join == 'join'

open(token)
if form == 'alone' and alone_token == token then
  local left = call('PTTL', LOCK)
  if left < ttl then
    left = ttl
    call('PEXPIRE', LOCK, ttl)
    call('PEXPIRE', LINE, ARGV[4])
  end
  return { 'held', string.match(alone_claim, '^%d+'), left, expired }
end
if known then
  local answer = refresh(token, ttl, patience)
  answer[#answer + 1] = us
  return answer
end
if form ~= 'none' and cap ~= capacity then
  return { 'mismatch', cap, 0, expired }
end
cap = capacity
local before = count
local holds = not foreign and n == before and u + units <= cap
if not holds and not join then
  local wait
  if form == 'alone' then
    wait = call('PTTL', LOCK)
  else
    wait = retry(count, units)
  end
  local holder, label = first()
  return { 'out', count + (foreign and 1 or 0), wait, expired, holder, label }
end
if count >= CLAIMS_MAX then
  return { 'full', 0, 0, expired }
end
local fence = number()
local claim = fence .. '\n' .. string.sub(us, 1, -4) .. '\n' .. text_behind
if holds and form == 'none' and units == ALL then
  call('SET', LOCK, token, 'PX', ttl)
  call('SET', LINE, token .. '\n' .. claim, 'PX', ARGV[4])
  tell('granted', claim)
  return { 'held', fence, ttl, expired }
end
local span = holds and ttl or patience
if form == 'alone' then unfold() end
local fields = {}
if holds then
  n = n + 1
  u = u + units
  fields = { 'n', n, 'u', u, 'h', SHARED, 'g:' .. token, now_text }
elseif form == 'none' then
  -- Nothing at the lock key is this line's: not even the mark of leases whose line was deleted.
  fields = { 'n', '0', 'u', '0', 'h', token }
end
if form == 'none' then
  enter(token, claim, now + span, 'cap', cap, unpack(fields))
  for _, key in ipairs({ LINE, ORDER, EXPIRY }) do
    call('PEXPIRE', key, span + GRACE_MS)
  end
  form = 'line'
else
  enter(token, claim, now + span, unpack(fields))
  keep(span)
end
if not holds then
  tell('queued', claim)
  return { 'queued', before + (foreign and 1 or 0), retry(before, units), expired, fence }
end
mark()
tell('granted', claim)
return { 'held', fence, ttl, expired }
