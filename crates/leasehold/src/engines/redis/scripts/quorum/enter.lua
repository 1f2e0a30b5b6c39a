-- Joins the line, or says how the claim stands; either way its time starts anew.
--
-- KEYS  1 lock  2 line  3 order  4 expiry  5 fence  6 marker
-- ARGV  1 token  2 owner  3 rank in 20 digits  4 hint  5 ttl in ms  6 patience in ms  7 mailbox
--       8 holder id, label and note, with newlines between
--       9 `try` to stay out of the line unless it is empty, `join`, or `repair`
--       10 the run of the server's process that the connection was opened to; for a repair the
--          fence, which the counter is raised to first
-- Answers `probation`, us if this run may not vote; `full`, us; or as `stand` says.

-- @time
local way = ARGV[9]
if way ~= 'repair' and redis.call('HGET', KEYS[6], 'run') ~= ARGV[10] then
  return { 'probation', us }
end
-- @draw
local call = redis.call
local token = ARGV[1]
local entry = ARGV[3] .. token .. ARGV[7] .. ARGV[2] .. now_text .. '\n' .. ARGV[8]
if way == 'repair' then raise_counter(ARGV[10]) end

-- The shortest way: nobody is in line.
if call('EXISTS', KEYS[2]) == 0 and call('SET', KEYS[1], token, 'NX', 'PX', ARGV[5]) then
  local vote = draw(ARGV[4])
  call('HSET', KEYS[2], 'h', token, 'v', vote, 'g', now_text, token, entry, 'o:' .. ARGV[2], token)
  call('PEXPIRE', KEYS[2], ARGV[5] + GRACE_MS)
  return { 'holds', us, vote, tonumber(ARGV[5]) }
end

-- The usual way with others before it: somebody holds, and nobody in line is dead.
if way == 'join' then
  local head, known = unpack(call('HMGET', KEYS[2], 'h', token))
  local count = call('ZCARD', KEYS[3])
  local live = head and not known and redis.pcall('GET', KEYS[1]) == head and count < 10000
  local dead = live and call('ZRANGEBYSCORE', KEYS[4], '-inf', '(' .. now_text, 'LIMIT', '0', '1')
  if live and #dead == 0 then
    local sub = string.sub
    local place = sub(entry, 1, 84)
    call('HSET', KEYS[2], token, entry, 'o:' .. ARGV[2], token)
    call('ZADD', KEYS[3], '0', place)
    local rank, wait = call('ZRANK', KEYS[3], place), call('PTTL', KEYS[1])
    local better = rank > 0 or sub(call('HGET', KEYS[2], head) or place, 1, 84) < place
    local lapses = {}
    if rank == count and rank > 0 then
      -- It is behind everybody.
      lapses[1] = call('ZRANGE', KEYS[4], '0', '0', 'REV', 'WITHSCORES')[2]
    elseif rank > 0 then
      local before = call('ZRANGE', KEYS[3], math.max(rank - 4, 0), rank - 1)
      for i, other in ipairs(before) do before[i] = sub(other, 21, 52) end
      lapses = call('ZMSCORE', KEYS[4], unpack(before))
    end
    for _, at in ipairs(lapses) do wait = at and math.max(wait, at - now) or wait end
    call('ZADD', KEYS[4], string.format('%d', now + ARGV[6]), token)
    for i = 2, 3 do
      if call('PTTL', KEYS[i]) < ARGV[6] + GRACE_MS / 2 then
        for k = 2, 4 do call('PEXPIRE', KEYS[k], ARGV[6] + GRACE_MS) end
      end
    end
    return { 'waits', us, rank + 1, better and 1 or 0, wait }
  end
end

-- @line

open()
if known then
  refresh(ARGV[5], ARGV[6])
elseif not head and not foreign then
  hold(entry, ARGV[5], ARGV[4])
elseif way ~= 'try' then
  if call('ZCARD', ORDER) >= 10000 then return { 'full', us } end
  known = entry
  call('HSET', LINE, token, entry, 'o:' .. ARGV[2], token)
  queue(ARGV[6])
  stay(LINE, ARGV[6])
end
return stand()
