-- The line of one name, as `line.rs` defines it: what every verb needs beyond its shortest way.
--
-- Put into the other scripts where they say so. Needs `time`, the answer of TIME.
--
-- KEYS  1 lock: the plain string that clients of other libraries respect. Holds the token of an
--         exclusive lease, or SHARED while there are others. Its expiry is the lease's.
--       2 line: a string while one exclusive lease is alone (token, newline, claim), a hash when
--         there is a line: `cap` its capacity, `n` how many claims hold, `u` their units, `h`
--         what it has put at the lock key, TOKEN -> claim, and `g:TOKEN` -> since when it holds,
--         for those who do
--       3 order: the place of every claim, sorted as text
--       4 expiry: TOKEN -> when it lapses
--       5 fence, where a number may be needed: the last that was given out in this slot; never
--         expires
-- ARGV  1 the channel of events
--
-- The parts agree: `order`, `expiry` and the hash have the same claims, those with a `g:` are the
-- first `n` by order, and `u` is the sum of their units. Each script that opens the line checks the
-- numbers, and makes the parts agree again where they do not. A key may have been evicted or
-- deleted, and a server may have stopped a script in the middle.
--
-- A claim is text: fence, joined, units, holder id, mailbox, label, each with a newline behind,
-- then the note. A place is its fence in 20 digits, its token and its mailbox in 32 each, and its
-- units. Instants are milliseconds on this server's clock; a claim lives through the one in which
-- it lapses, as keys do, so that rounding never ends it early.

local LOCK, LINE, ORDER, EXPIRY = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local SHARED = 'leasehold:shared'
-- The capacity of a line of locks, and the units of an exclusive claim.
local ALL = 4294967295
-- How long the companions outlive the last claim in them, to tell who it was that expired.
local GRACE_MS = 600000
-- How often whoever is next looks whether a client of another library has let go.
local FOREIGN_MS = 200
-- Among how many claims before it a claim looks for the instant to ask again.
local WINDOW = 4
-- Among how many of the first in line, too, if it can hold beside others.
local FIRST = 32
local CLAIMS_MAX = 10000
-- How many fields the hash has that are about no claim: `cap`, `n`, `u` and `h`.
local HEAD_FIELDS = 4
-- No client leaves a waiting claim without a heartbeat for longer.
local PATIENCE_MAX_MS = 10000

local call, sub = redis.call, string.sub
-- The present instant, as text too: turning numbers into text is what costs most here.
local now_text = time[1] .. sub('00000' .. time[2], -6, -4)
local now = tonumber(now_text)
-- 'none', 'alone' or 'line'.
local form
-- The line's capacity, how many of its claims hold, their units, and how many claims it has.
local cap, n, u, count = 0, 0, 0, 0
-- The token and the text of a lease that is alone.
local alone_token, alone_claim
-- Whether somebody else's value is at the lock key, or this line's.
local foreign, ours = false, false
-- What the hash has of the claim that this is about: its text, and since when it holds.
local known, known_since
-- How many leases were found expired.
local expired = 0

-- The parts of a place.
local function token_of(place) return sub(place, 21, 52) end
local function mailbox_of(place) return sub(place, 53, 84) end
local function units_of(place) return tonumber(sub(place, 85)) end

-- The place of a claim.
local function place_of(token, text)
  local fence, units, mailbox = string.match(text, '^(%d+)\n%d+\n(%d+)\n%x+\n(%x*)\n')
  return string.rep('0', 20 - #fence) .. fence .. token .. mailbox .. units
end

-- The holder's id and label in a claim's text.
local function who(text)
  return string.match(text, '^%d+\n%d+\n%d+\n(%x+)\n%x*\n([^\n]*)\n')
end

-- Tells those who watch: the lock key, then each event, a NUL before it, which neither names nor
-- notes have. A reason stands behind one more.
local function tell(kind, text, reason)
  if reason then text = text .. '\0' .. reason end
  call('PUBLISH', ARGV[1], LOCK .. '\0' .. kind .. '\n' .. text)
end

-- Takes a claim out of the hash. `held` says whether it was among those who hold.
local function remove(token, text, held)
  local place = place_of(token, text)
  if held then
    n = n - 1
    u = u - units_of(place)
  end
  count = count - 1
  call('ZREM', ORDER, place)
  call('ZREM', EXPIRY, token)
  call('HDEL', LINE, token, 'g:' .. token)
end

local function expire(token)
  local text, since = unpack(call('HMGET', LINE, token, 'g:' .. token))
  if not text then
    -- A companion that was evicted must not make the others unusable.
    call('ZREM', EXPIRY, token)
    return
  end
  if since then expired = expired + 1 end
  remove(token, text, since)
  tell('expired', text)
end

-- Makes the parts of a line agree. The hash decides who is in line and who holds: every claim has
-- its text there, from which its place follows.
local function mend()
  local fields, texts, since, places = call('HGETALL', LINE), {}, {}, {}
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    if sub(field, 1, 2) == 'g:' then
      since[sub(field, 3)] = value
    elseif string.match(value, '^%d+\n%d+\n%d+\n%x+\n%x*\n') then
      texts[field] = value
      places[#places + 1] = place_of(field, value)
    elseif #field > 3 then
      call('HDEL', LINE, field)
    end
  end
  for token in pairs(since) do
    if not texts[token] then call('HDEL', LINE, 'g:' .. token) end
  end
  table.sort(places)
  -- The lock key lives as long as each of its leases, so a lease whose end is unknown ends with it.
  local left = math.max(call('PTTL', LOCK), 1)
  local holders, latest, ends = 0, now, {}
  n, u, count = 0, 0, #places
  for i, place in ipairs(places) do
    local token = token_of(place)
    if since[token] then
      holders, n, u = i, n + 1, u + units_of(place)
    end
    local lapses = call('ZSCORE', EXPIRY, token)
    ends[i] = lapses or now + (since[token] and left or PATIENCE_MAX_MS)
    latest = math.max(latest, tonumber(ends[i]))
  end
  call('DEL', ORDER, EXPIRY)
  for i, place in ipairs(places) do
    call('ZADD', ORDER, '0', place)
    call('ZADD', EXPIRY, ends[i], token_of(place))
  end
  call('HSET', LINE, 'n', n, 'u', u)
  for _, key in ipairs({ LINE, ORDER, EXPIRY }) do
    call('PEXPIRE', key, latest - now + GRACE_MS)
  end
  -- A count that was too large let later claims overtake these. Nobody may stand before a holder.
  for i = 1, holders do
    local token = token_of(places[i])
    if not since[token] then expire(token) end
  end
end

-- The lock key lives as long as the longest of those who share it.
local function mark()
  local last = call('ZREVRANGE', EXPIRY, 0, 0, 'WITHSCORES')
  call('SET', LOCK, SHARED, 'PX', math.max(last[2] - now, 1))
  ours = true
end

-- Lets everybody hold who fits now, rings them, and writes the sums down.
local function settle()
  local shared, told = false, false
  while not foreign and u < cap and n < count do
    local at = n == 0 and '0' or n
    local place = call('ZRANGE', ORDER, at, at)[1]
    local token, units = token_of(place), units_of(place)
    if u + units > cap then break end
    n = n + 1
    u = u + units
    local text = call('HGET', LINE, token)
    if units == ALL and cap == ALL then
      call('SET', LOCK, token, 'PXAT', call('ZSCORE', EXPIRY, token) or now + PATIENCE_MAX_MS)
      call('HSET', LINE, 'n', '1', 'u', sub(place, 85), 'h', token, 'g:' .. token, now_text)
      ours = true
    else
      call('HSET', LINE, 'n', n, 'u', u, 'h', SHARED, 'g:' .. token, now_text)
      shared = true
    end
    told = true
    tell('granted', text)
    -- The bell is last: a server writes first to those it had something to say to last. Others may
    -- hear it, so it does not tell the token: `bells.rs`.
    local bell = sub(place, 1, 20) .. redis.sha1hex(token) .. redis.sha1hex(sub(place, 1, 52))
    call('PUBLISH', 'leasehold:mailbox:' .. mailbox_of(place), bell)
  end
  if shared then mark() end
  if count == 0 then
    call('DEL', LINE, ORDER, EXPIRY)
    if ours then call('DEL', LOCK) end
    form, ours = 'none', false
  elseif not told then
    call('HSET', LINE, 'n', n, 'u', u)
  end
end

-- Whether the numbers of the line can be right, as far as that is seen without a look at its
-- claims. Numbers that are wrong all the same are too large, and are found once nobody holds.
local function adds_up(fields)
  if fields ~= HEAD_FIELDS + count + n then return false end
  if cap == ALL then return u == n or n == 1 and u == ALL end
  return u <= cap and (n == 0 and u == 0 or n > 0 and u >= n)
end

-- Takes out what has lapsed, and what no lock key stands for any more. `agreed` says whether the
-- parts of the line agreed when it was opened, and `soonest` when its first claim lapses.
local function clean(agreed, soonest)
  local changed = not agreed
  if changed then mend() end
  if not ours and n > 0 then
    for _, place in ipairs(call('ZRANGE', ORDER, 0, n - 1)) do expire(token_of(place)) end
    changed = true
  end
  if changed or tonumber(soonest) < now then
    repeat
      local dead = call('ZRANGE', EXPIRY, '-inf', '(' .. now_text, 'BYSCORE', 'LIMIT', '0', '100')
      for _, dying in ipairs(dead) do expire(dying) end
    until #dead == 0
    changed = true
  end
  return changed
end

-- Finds out how the line stands, and takes out what has lapsed. `token` is the claim that this is
-- about. `texts` is what MGET answered of the lock key and the line, if the script has asked.
local function open(token, texts)
  local lock, alone = unpack(texts or call('MGET', LOCK, LINE))
  -- MGET answers nothing for what is no string, and other libraries may keep anything there.
  if not lock then lock = redis.pcall('GET', LOCK) end
  if alone then
    alone_token, alone_claim = sub(alone, 1, 32), sub(alone, 34)
    if lock == alone_token then
      form, cap, n, u, count, ours = 'alone', ALL, 1, ALL, 1, true
      return
    end
    -- The lock key was the lease. It expired, or somebody deleted it.
    expired = expired + 1
    tell('expired', alone_claim)
  else
    local head = call('HMGET', LINE, 'cap', 'n', 'u', 'h', token, 'g:' .. token)
    cap, n, u = tonumber(head[1]), tonumber(head[2]) or 0, tonumber(head[3]) or 0
    if cap then
      form, known, known_since = 'line', head[5], head[6]
      ours = lock ~= false and lock == head[4]
      foreign = not ours and lock ~= false
      count = call('ZCARD', ORDER)
      local soonest = call('ZRANGE', EXPIRY, '0', '0', 'WITHSCORES')[2]
      local agreed = soonest and adds_up(call('HLEN', LINE))
      if clean(agreed, soonest) or n == 0 then
        settle()
        known, known_since = unpack(call('HMGET', LINE, token, 'g:' .. token))
      end
      return
    end
  end
  call('DEL', LINE, ORDER, EXPIRY)
  form, cap, n, u = 'none', 0, 0, 0
  foreign = lock ~= false
end

-- Keeps the companions for this long and a while longer; seldom, because it is a long while.
local function keep(span)
  if call('PTTL', LINE) < span + GRACE_MS / 2 then
    for _, key in ipairs({ LINE, ORDER, EXPIRY }) do
      call('PEXPIRE', key, span + GRACE_MS)
    end
  end
end

-- Puts a claim into the hash, with further fields of it. `lapses` is an instant.
local function enter(token, text, lapses, ...)
  count = count + 1
  call('HSET', LINE, token, text, ...)
  call('ZADD', ORDER, '0', place_of(token, text))
  call('ZADD', EXPIRY, lapses, token)
end

-- Makes a hash of a lease that was alone.
local function unfold()
  local left = call('PTTL', LOCK)
  local joined = string.match(alone_claim, '^%d+\n(%d+)')
  call('DEL', LINE)
  count = 0
  enter(alone_token, alone_claim, now + left,
    'cap', ALL, 'n', 1, 'u', ALL, 'h', alone_token, 'g:' .. alone_token, joined)
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
  local places = call('ZRANGE', ORDER, math.max(ahead - WINDOW, 0), ahead - 1)
  if units < cap and ahead > WINDOW then
    -- Permits come back one by one, and those that were taken first the soonest.
    local first = call('ZRANGE', ORDER, 0, math.min(FIRST, ahead - WINDOW) - 1)
    for _, place in ipairs(first) do places[#places + 1] = place end
  end
  local tokens = {}
  for i, place in ipairs(places) do tokens[i] = token_of(place) end
  local before = call('ZMSCORE', EXPIRY, unpack(tokens))
  if units == cap then
    -- Every one of them must be gone.
    local last = 0
    for _, lapses in ipairs(before) do last = math.max(last, tonumber(lapses or now)) end
    return last - now
  end
  for i, place in ipairs(places) do
    before[i] = { lapses = tonumber(before[i] or now), units = units_of(place) }
  end
  table.sort(before, function(a, b) return a.lapses > b.lapses end)
  local sum, last = 0, 0
  for _, claim in ipairs(before) do
    sum = sum + claim.units
    last = claim.lapses - now
    if sum > cap - units then return last end
  end
  return #before == ahead and 0 or last
end

-- The holder of the first claim; two empty texts if there is none.
local function first()
  if foreign then return '', 'foreign' end
  if form == 'none' then return '', '' end
  if form == 'alone' then return who(alone_claim) end
  local place = call('ZRANGE', ORDER, 0, 0)[1]
  return who(call('HGET', LINE, token_of(place)))
end

-- Starts a claim's time again, and says how it stands. A lease never ends sooner by it.
local function refresh(token, ttl, patience)
  local span = tonumber(known_since and ttl or patience)
  local lapses = known_since and call('ZSCORE', EXPIRY, token)
  if lapses then span = math.max(span, lapses - now) end
  call('ZADD', EXPIRY, now + span, token)
  keep(span)
  local fence = string.match(known, '^%d+')
  if not known_since then
    local place = place_of(token, known)
    local ahead = call('ZRANK', ORDER, place)
    return { 'queued', ahead + (foreign and 1 or 0), retry(ahead, units_of(place)), expired, fence }
  end
  if cap == ALL and u == ALL then
    call('PEXPIRE', LOCK, span)
  else
    mark()
  end
  return { 'held', fence, span, expired }
end
