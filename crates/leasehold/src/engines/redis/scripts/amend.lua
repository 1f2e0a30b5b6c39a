-- Changes a claim that holds: its units, its note, or both. Its place and its time stay.
--
-- KEYS  1 lock  2 line  3 order  4 expiry
-- ARGV  1 the channel of events  2 token
--       3 units, or empty to leave them  4 the capacity they are part of
--       5 `note` if there is another note  6 the note
-- Answers `done`, expired; `refused`, expired; `out`, expired, holder id, label.

local token = ARGV[2]
local time = redis.call('TIME')
-- @line

open(token)
local text
if form == 'alone' and alone_token == token then
  text = alone_claim
elseif known and known_since then
  text = known
else
  local holder, label = first()
  return { 'out', expired, holder, label }
end

local place = place_of(token, text)
local head, has, middle, note =
  string.match(text, '^(%d+\n%d+\n)(%d+)(\n%x+\n%x*\n[^\n]*\n)(.*)$')
local wants = ARGV[3] == '' and has or ARGV[3]
if wants ~= has then
  local units = tonumber(wants)
  -- Nobody who holds may lose that by it. Only somebody who holds alone may take more.
  local more = units > tonumber(has) and not (cap == ALL and units == ALL and n == 1)
  if tonumber(ARGV[4]) ~= cap or units < 1 or more then return { 'refused', expired } end
elseif ARGV[3] ~= '' and tonumber(ARGV[4]) ~= cap then
  return { 'refused', expired }
end
text = head .. wants .. middle .. (ARGV[5] == 'note' and ARGV[6] or note)

if wants == has then
  if form == 'alone' then
    call('SET', LINE, token .. '\n' .. text, 'KEEPTTL')
  else
    call('HSET', LINE, token, text)
  end
  tell('amended', text)
  return { 'done', expired }
end

if form == 'alone' then unfold() end
local lapses = call('ZSCORE', EXPIRY, token)
call('ZREM', ORDER, place)
count = count - 1
enter(token, text, lapses)
u = u - tonumber(has) + tonumber(wants)
if cap == ALL and u == ALL then
  call('SET', LOCK, token, 'PXAT', lapses)
  call('HSET', LINE, 'u', wants, 'h', token)
else
  call('HSET', LINE, 'u', u, 'h', SHARED)
  mark()
end
tell('amended', text)
settle()
return { 'done', expired }
