-- Joins the line, asks how a claim stands, or confirms that it holds.
--
-- KEYS  1 lock  2 line  3 order  4 expiry  5 fence
-- ARGV  1 the channel of events  2 token  3 units  4 capacity  5 ttl in ms  6 patience in ms
--       7 `join` to stand in line when it cannot hold at once, else empty
--       8 the claim's text behind its number and units: holder id, mailbox, label, note
--       9 holder id, newline, label, for the event
-- Answers `held`, fence, ms left, expired; `queued`, ahead, retry in ms, expired; `out`, ahead,
-- retry in ms, expired, holder id, label; `mismatch`, capacity, 0, expired; `full`.

local time = redis.call('TIME')

-- The next number: the server's clock in microseconds, or one more than the last, whichever is
-- greater. As text, because numbers here are exact only up to 2^53.
local function number()
  local us = string.format('%.0f', time[1] * 1000000 + time[2])
  local last = redis.call('SET', KEYS[5], us, 'GET')
  if last and (#last > #us or #last == #us and last >= us) then
    redis.call('SET', KEYS[5], last)
    redis.call('INCR', KEYS[5])
    return redis.call('GET', KEYS[5])
  end
  return us
end

local function text(fence)
  local joined = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
  return fence .. '\n' .. ARGV[3] .. '\n' .. joined .. '\n' .. ARGV[8]
end

-- The shortest way: an exclusive claim on a name that nobody uses.
if ARGV[3] == '4294967295' then
  local ttl = tonumber(ARGV[5])
  if redis.call('SET', KEYS[1], ARGV[2], 'NX', 'PX', ttl) then
    local fence = number()
    if redis.call('SET', KEYS[2], ARGV[2] .. '\n' .. text(fence), 'NX', 'PX', ttl + 600000) then
      redis.call('PUBLISH', ARGV[1], 'granted\n' .. fence .. '\n' .. ARGV[9] .. '\n'
        .. #KEYS[1] .. '\n' .. KEYS[1])
      return { 'held', fence, ttl, 0 }
    end
    -- Others are in line although nobody holds at this moment.
    redis.call('DEL', KEYS[1])
  end
end

-- @line

local token, units, capacity = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local ttl, patience, join = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == 'join'

open()
if form == 'alone' and alone_token == token then
  call('PEXPIRE', LOCK, ttl)
  call('PEXPIRE', LINE, ttl + GRACE_MS)
  return { 'held', read(alone_claim).fence, ttl, expired }
end
if form == 'line' then
  local known = call('HGET', LINE, token)
  if known then return refresh(token, known, ttl, patience) end
end
if form ~= 'none' and cap ~= capacity then
  return { 'mismatch', cap, 0, expired }
end
cap = capacity
local count = form == 'alone' and 1 or call('ZCARD', ORDER)
local holds = not foreign and n == count and u + units <= cap
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
local claim = text(fence)
if holds and form == 'none' and units == ALL then
  call('SET', LOCK, token, 'PX', ttl)
  call('SET', LINE, token .. '\n' .. claim, 'PX', ttl + GRACE_MS)
  tell('granted', read(claim))
  return { 'held', fence, ttl, expired }
end
local span = holds and ttl or patience
if form == 'alone' then unfold() end
enter(token, claim, now + span)
if form == 'none' then
  call('HSET', LINE, 'cap', cap, 'n', 0, 'u', 0)
  for _, key in ipairs({ LINE, ORDER, EXPIRY }) do
    call('PEXPIRE', key, span + GRACE_MS)
  end
  form = 'line'
else
  keep(span)
end
if not holds then
  tell('queued', read(claim))
  return { 'queued', count + (foreign and 1 or 0), retry(count, units), expired }
end
n = n + 1
u = u + units
call('HSET', LINE, 'n', n, 'u', u, 'g:' .. token, now)
mark()
tell('granted', read(claim))
return { 'held', fence, ttl, expired }
