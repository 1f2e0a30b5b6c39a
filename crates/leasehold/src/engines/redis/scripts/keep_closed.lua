-- Gives a lease back, and lets its claim stay for a while under a token that nobody knows. Needs no
-- memory beyond that of the claim.
--
-- KEYS  1 lock  2 line  3 order  4 expiry
-- ARGV  1 the channel of events  2 token  3 how long it stays in ms
--       4 the same and a while longer, for the companions  5 the new token
-- Answers `released`, expired; `expired`, expired; `taken`, expired, holder id, label.

local token, retired = ARGV[2], ARGV[5]
local time = redis.call('TIME')
-- @line

open(token)
if form == 'alone' and alone_token == token then
  call('SET', LOCK, retired, 'PX', ARGV[3])
  call('SET', LINE, retired .. '\n' .. alone_claim, 'PX', ARGV[4])
  return { 'released', expired }
end
if known and known_since then
  local stay = tonumber(ARGV[3])
  -- First in, then out: a key that is empty for a moment may be gone in a slot that moves.
  enter(retired, known, now + stay)
  call('HSET', LINE, 'g:' .. retired, known_since)
  call('ZREM', ORDER, place_of(token, known))
  call('ZREM', EXPIRY, token)
  call('HDEL', LINE, token, 'g:' .. token)
  if cap == ALL and u == ALL then
    call('SET', LOCK, retired, 'PX', stay)
    call('HSET', LINE, 'h', retired)
  else
    mark()
  end
  keep(stay)
  return { 'released', expired }
end
local holder, label = first()
if label == '' then return { 'expired', expired } end
return { 'taken', expired, holder, label }
