-- One name's line at one node of a quorum, as `quorum/node_line.rs` defines it.
--
-- Put into the other scripts of this folder where they say so. Needs `draw.lua` before it.
--
-- KEYS  1 lock: the plain string that clients of other libraries respect: the token of the claim
--         that holds. Its expiry is that claim's.
--       2 line: a hash. `h` the token that holds, `v` its vote, `g` since when; TOKEN -> entry of
--         every claim; `o:OWNER` -> TOKEN
--       3 order: the place of every claim that waits, sorted as text
--       4 expiry: TOKEN -> when it lapses, of those who wait
--       5 fence: the counter of this name's bucket; never expires, never falls
--       6 marker: `run` is the run of the server's process under which this node may vote
-- ARGV  1 token
--
-- A place is the rank in 20 digits, the token and the mailbox in 32 each. An entry is the place,
-- the owner in 32, the instant of joining in 13, a newline, then holder id, label and note with
-- newlines between. Numbers are texts: here they would be exact only up to 2^53. Instants are
-- milliseconds on this server's clock; a claim lives through the one in which it lapses, as keys
-- do.

local LOCK, LINE, ORDER, EXPIRY = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
-- How often whoever is next looks whether a client of another library has let go.
local FOREIGN_MS = 200
-- Among how many claims before it a claim looks for the instant to ask again.
local WINDOW = 4

local call, sub = redis.call, string.sub
local token = ARGV[1]
-- The claim that holds and its vote; what the hash has of the claim that this is about.
local head, vote, known = false, false, false
-- Whether somebody else's value is at the lock key.
local foreign = false

-- Holder id and label in an entry.
local function who(entry)
  return string.match(entry, '^([^\n]*)\n([^\n]*)\n', 131)
end

-- Takes the text of a claim out of the hash.
local function drop(id, entry)
  call('HDEL', LINE, id, 'o:' .. sub(entry, 85, 116))
  if id == token then known = false end
end

-- Hands a line that nobody holds to the first who waits: here a tenure begins, so here its vote
-- is drawn.
local function settle(hint)
  while not head and not foreign do
    local place = call('ZRANGE', ORDER, '0', '0')[1]
    if not place then break end
    local next = sub(place, 21, 52)
    local lapses = call('ZSCORE', EXPIRY, next)
    call('ZREM', ORDER, place)
    -- A companion that was evicted must not make the others unusable.
    if lapses then
      call('ZREM', EXPIRY, next)
      head, vote = next, draw(hint)
      call('SET', LOCK, next, 'PXAT', lapses)
      call('HSET', LINE, 'h', next, 'v', vote, 'g', now_text)
      if next ~= token then
        -- Others may hear it, so it does not tell the token: `bells.rs`.
        local number = sub('0000000000000000000' .. vote, -20)
        local bell = number .. redis.sha1hex(next) .. redis.sha1hex(number .. next)
        call('PUBLISH', 'leasehold:mailbox:' .. sub(place, 53, 84), bell)
      end
    end
  end
  if not head and call('ZCARD', ORDER) == 0 then call('DEL', LINE, ORDER, EXPIRY) end
end

-- Ends the tenure of whoever holds.
local function vacate()
  call('HDEL', LINE, 'h', 'v', 'g')
  head, vote = false, false
end

local function bury(dead)
  for _, id in ipairs(dead) do
    local entry = call('HGET', LINE, id)
    if entry then
      call('ZREM', ORDER, sub(entry, 1, 84))
      drop(id, entry)
    end
    call('ZREM', EXPIRY, id)
  end
end

-- Finds out how the line stands, and takes out what has lapsed.
local function open()
  local lock = redis.pcall('GET', LOCK)
  local top = call('HMGET', LINE, 'h', 'v', token, 'o:' .. token)
  head, vote, known = top[1], top[2], top[3]
  if not known and top[4] then
    token = top[4]
    known = call('HGET', LINE, token)
  end
  foreign = lock ~= false and lock ~= head
  if head and lock ~= head then
    -- The lock key was the tenure. It expired, or somebody deleted it.
    local entry = call('HGET', LINE, head)
    if entry then drop(head, entry) end
    vacate()
  end
  local dead = call('ZRANGEBYSCORE', EXPIRY, '-inf', '(' .. now_text, 'LIMIT', '0', '100')
  while #dead > 0 do
    bury(dead)
    dead = call('ZRANGEBYSCORE', EXPIRY, '-inf', '(' .. now_text, 'LIMIT', '0', '100')
  end
  if not head then settle('0') end
end

-- Keeps the companions for this long and a while longer; seldom, because it is a long while.
local function stay(key, span)
  if call('PTTL', key) < span + GRACE_MS / 2 then
    for i = 2, 4 do call('PEXPIRE', KEYS[i], span + GRACE_MS) end
  end
end

local function hold(entry, ttl, hint)
  head, vote, known = token, draw(hint), entry
  call('SET', LOCK, token, 'PX', ttl)
  call('HSET', LINE, 'h', token, 'v', vote, 'g', now_text,
    token, entry, 'o:' .. sub(entry, 85, 116), token)
  stay(LINE, ttl)
end

local function queue(patience)
  call('ZADD', ORDER, '0', sub(known, 1, 84))
  call('ZADD', EXPIRY, now + patience, token)
  stay(ORDER, patience)
end

-- Starts a claim's time again. One that holds never ends sooner by it.
local function refresh(ttl, patience)
  if head == token then
    if call('PTTL', LOCK) < tonumber(ttl) then
      call('PEXPIRE', LOCK, ttl)
      stay(LINE, ttl)
    end
  elseif known then
    call('ZADD', EXPIRY, now + patience, token)
    stay(ORDER, patience)
  end
end

-- When the claim behind the first `ahead` that wait would hold if nobody said another word.
local function retry(ahead)
  local left = (head or foreign) and call('PTTL', LOCK) or 0
  if foreign then return left > 0 and math.min(left, FOREIGN_MS) or FOREIGN_MS end
  if ahead == 0 then return left end
  local ids = call('ZRANGE', ORDER, math.max(ahead - WINDOW, 0), ahead - 1)
  for i, place in ipairs(ids) do ids[i] = sub(place, 21, 52) end
  for _, lapses in ipairs(call('ZMSCORE', EXPIRY, unpack(ids))) do
    if lapses then left = math.max(left, lapses - now) end
  end
  return left
end

-- The holder; two empty texts if there is none.
local function holder()
  if foreign then return '', 'foreign' end
  local entry = head and call('HGET', LINE, head)
  if not entry then return '', '' end
  return who(entry)
end

-- How the claim stands: `holds`, us, vote, ms left; `waits`, us, ahead, 1 if somebody has a
-- better rank, retry in ms; `out`, us, how many are in line, retry in ms, holder id, label.
local function stand()
  if head == token then return { 'holds', us, vote, call('PTTL', LOCK) } end
  local before = (head or foreign) and 1 or 0
  local rank = known and call('ZRANK', ORDER, sub(known, 1, 84))
  if rank then
    local first = head and call('HGET', LINE, head)
    local better = rank > 0 or first and sub(first, 1, 84) < sub(known, 1, 84)
    return { 'waits', us, rank + before, better and 1 or 0, retry(rank) }
  end
  local waiting = call('ZCARD', ORDER)
  return { 'out', us, waiting + before, retry(waiting), holder() }
end
