-- The line of one name, as `line.rs` defines it: what every verb needs beyond its shortest way.
--
-- Put into the other scripts where they say so. Needs `time`, the answer of TIME.
--
-- KEYS  1 lock: the plain string that clients of other libraries respect. Holds the token of an
--         exclusive lease, or SHARED while there are others. Its expiry is the lease's.
--       2 line: a string while one exclusive lease is alone (token, newline, claim), a hash when
--         there is a line: `cap` its capacity, `n` how many claims hold, `u` their units,
--         TOKEN -> claim, `g:TOKEN` -> since when it holds
--       3 order: `FENCE:TOKEN:UNITS` of every claim, sorted as text
--       4 expiry: TOKEN -> when it lapses
--       5 fence: the last number given out in this slot; never expires
-- ARGV  1 the channel of events  2 the lock key's length, newline, lock key, for events
--
-- A claim is text: fence, joined, units, holder id, mailbox, label, each with a newline behind,
-- then the note. Instants are milliseconds on this server's clock; a claim lives through the one
-- in which it lapses, as keys do, so that rounding never ends it early.

local LOCK, LINE, ORDER, EXPIRY, FENCE = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local SHARED = 'leasehold:shared'
-- The capacity of a line of locks, and the units of an exclusive claim.
local ALL = 4294967295
-- How long the companions outlive the last claim in them, to tell who it was that expired.
local GRACE_MS = 600000
-- How often whoever is next looks whether a client of another library has let go.
local FOREIGN_MS = 200
-- Among how many claims before it a claim looks for the instant to ask again.
local WINDOW = 16
local CLAIMS_MAX = 10000

local call = redis.call
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- 'none', 'alone' or 'line'.
local form
-- The line's capacity, how many of its claims hold, and their units.
local cap, n, u = 0, 0, 0
-- The token and the text of a lease that is alone.
local alone_token, alone_claim
-- Whether somebody else's value is at the lock key.
local foreign = false
-- Whether the value at the lock key is this line's.
local ours = false
-- How many leases were found expired.
local expired = 0

local function read(text)
  local fence, joined, units, holder, mailbox, label =
    string.match(text, '^(%d+)\n(%d+)\n(%d+)\n(%x+)\n([^\n]*)\n([^\n]*)\n')
  return { fence = fence, joined = joined, units = units, holder = holder,
           mailbox = mailbox, label = label, text = text }
end

local function place(claim, token)
  return string.rep('0', 20 - #claim.fence) .. claim.fence .. ':' .. token .. ':' .. claim.units
end

-- Tells those who watch. A reason stands behind a NUL, which no note has.
local function tell(kind, claim, reason)
  local text = reason and claim.text .. '\0' .. reason or claim.text
  call('PUBLISH', ARGV[1], kind .. '\n' .. ARGV[2] .. text)
end

-- Takes a claim out of the hash; says whether it held.
local function remove(token, claim)
  local member = place(claim, token)
  -- A companion that was evicted must not make the others unusable.
  local held = (call('ZRANK', ORDER, member) or n) < n
  if held then
    n = n - 1
    u = u - claim.units
  end
  call('ZREM', ORDER, member)
  call('ZREM', EXPIRY, token)
  call('HDEL', LINE, token, 'g:' .. token)
  return held
end

local function expire(token)
  local text = call('HGET', LINE, token)
  if not text then
    call('ZREM', EXPIRY, token)
    return
  end
  local claim = read(text)
  if remove(token, claim) then
    expired = expired + 1
  end
  tell('expired', claim)
end

-- The lock key lives as long as the longest of those who share it.
local function mark()
  local last = call('ZREVRANGE', EXPIRY, 0, 0, 'WITHSCORES')
  call('SET', LOCK, SHARED, 'PX', math.max(last[2] - now, 1))
  ours = true
end

-- Lets everybody hold who fits now, rings them, and writes the sums down.
local function settle()
  local shared = false
  while not foreign do
    local member = call('ZRANGE', ORDER, n, n)[1]
    if not member then break end
    local token, units = string.match(member, '^%d+:(%x+):(%d+)$')
    if u + units > cap then break end
    n = n + 1
    u = u + units
    local claim = read(call('HGET', LINE, token))
    call('HSET', LINE, 'g:' .. token, now)
    if cap == ALL and u == ALL then
      local left = call('ZSCORE', EXPIRY, token) - now
      call('SET', LOCK, token, 'PX', math.max(left, 1))
      ours = true
    else
      shared = true
    end
    call('PUBLISH', claim.mailbox, token .. claim.fence)
    tell('granted', claim)
  end
  if call('ZCARD', ORDER) == 0 then
    call('DEL', LINE, ORDER, EXPIRY)
    if ours then call('DEL', LOCK) end
    form, ours = 'none', false
    return
  end
  if shared then mark() end
  call('HSET', LINE, 'n', n, 'u', u)
end

-- Finds out how the line stands, and takes out what has lapsed.
local function open()
  local lock = redis.pcall('GET', LOCK)
  local kind = call('TYPE', LINE).ok
  if kind == 'string' then
    alone_token, alone_claim = string.match(call('GET', LINE), '^(%x+)\n(.*)$')
    if lock == alone_token then
      form, cap, n, u, ours = 'alone', ALL, 1, ALL, true
      return
    end
    -- The lock key was the lease. It expired, or somebody deleted it.
    expired = expired + 1
    tell('expired', read(alone_claim))
    call('DEL', LINE)
  elseif kind == 'hash' then
    form = 'line'
    local head = call('HMGET', LINE, 'cap', 'n', 'u')
    cap, n, u = tonumber(head[1]), tonumber(head[2]), tonumber(head[3])
    ours = lock == SHARED or type(lock) == 'string' and call('HEXISTS', LINE, lock) == 1
    foreign = not ours and lock ~= false
    local changed = false
    if not ours then
      for _, member in ipairs(n > 0 and call('ZRANGE', ORDER, 0, n - 1) or {}) do
        expire(string.match(member, '^%d+:(%x+):'))
        changed = true
      end
    end
    while true do
      local dead = call('ZRANGEBYSCORE', EXPIRY, '-inf', '(' .. now, 'LIMIT', 0, 100)
      if #dead == 0 then break end
      changed = true
      for _, token in ipairs(dead) do expire(token) end
    end
    if changed or n == 0 then settle() end
    return
  end
  call('DEL', ORDER, EXPIRY)
  form, cap, n, u = 'none', 0, 0, 0
  foreign = lock ~= false
end

-- Keeps the companions for this long and a while longer.
local function keep(span)
  for _, key in ipairs({ LINE, ORDER, EXPIRY }) do
    call('PEXPIRE', key, span + GRACE_MS, 'GT')
  end
end

-- Puts a claim into the hash. `lapses` is an instant.
local function enter(token, text, lapses)
  call('HSET', LINE, token, text)
  call('ZADD', ORDER, 0, place(read(text), token))
  call('ZADD', EXPIRY, lapses, token)
end

-- Makes a hash of a lease that was alone.
local function unfold()
  local left = call('PTTL', LOCK)
  local claim = read(alone_claim)
  call('DEL', LINE)
  call('HSET', LINE, 'cap', ALL, 'n', 1, 'u', ALL, 'g:' .. alone_token, claim.joined)
  enter(alone_token, alone_claim, now + left)
  for _, key in ipairs({ LINE, ORDER, EXPIRY }) do
    call('PEXPIRE', key, left + GRACE_MS)
  end
  form = 'line'
end

local function foreign_retry()
  local left = call('PTTL', LOCK)
  if left > 0 and left < FOREIGN_MS then return left end
  return FOREIGN_MS
end

-- When the claim behind the first `ahead` would hold if nobody said another word.
local function retry(ahead, units)
  if foreign then return foreign_retry() end
  if ahead == 0 then return 0 end
  local room = cap - units
  local before, tokens = {}, {}
  for i, member in ipairs(call('ZRANGE', ORDER, math.max(ahead - WINDOW, 0), ahead - 1)) do
    local token, taken = string.match(member, '^%d+:(%x+):(%d+)$')
    tokens[i] = token
    before[i] = { units = tonumber(taken) }
  end
  for i, lapses in ipairs(call('ZMSCORE', EXPIRY, unpack(tokens))) do
    before[i].lapses = tonumber(lapses)
  end
  table.sort(before, function(a, b) return a.lapses > b.lapses end)
  local sum, last = 0, 0
  for _, claim in ipairs(before) do
    sum = sum + claim.units
    last = claim.lapses - now
    if sum > room then return last end
  end
  return #before == ahead and 0 or last
end

-- The holder of the first claim; two empty texts if there is none.
local function first()
  if foreign then return '', 'foreign' end
  if form == 'none' then return '', '' end
  local text = alone_claim
  if form == 'line' then
    local member = call('ZRANGE', ORDER, 0, 0)[1]
    text = call('HGET', LINE, string.match(member, '^%d+:(%x+):'))
  end
  local claim = read(text)
  return claim.holder, claim.label
end

-- Starts a claim's time anew, and says how it stands.
local function refresh(token, text, ttl, patience)
  local claim = read(text)
  local rank = call('ZRANK', ORDER, place(claim, token)) or n
  local held = rank < n
  local span = tonumber(held and ttl or patience)
  call('ZADD', EXPIRY, now + span, token)
  keep(span)
  if not held then
    return { 'queued', rank + (foreign and 1 or 0), retry(rank, claim.units), expired }
  end
  if cap == ALL and u == ALL then
    call('PEXPIRE', LOCK, span)
  else
    mark()
  end
  return { 'held', claim.fence, span, expired }
end
