-- Makes exclusive claims on several names that nobody uses, all or none.
--
-- KEYS  for each name: lock, line, order, expiry, fence
-- ARGV  1 the channel of events; then for each name: token; ttl in ms; the same and a while
--       longer, for the companions; the claim's text behind its number and the instant
-- Answers the fences; nothing if one of the names is in use, or was and has to be cleaned up.

local time = redis.call('TIME')
local us = time[1] .. string.sub('00000' .. time[2], -6)

-- As in the script for one claim.
local function number(key)
  local last = redis.call('SET', key, us, 'GET')
  if last and (#last > #us or #last == #us and last >= us) then
    redis.call('SET', key, last)
    redis.call('INCR', key)
    return redis.call('GET', key)
  end
  return us
end

local count = #KEYS / 5
local known = 0
for i = 1, count do
  local lock = redis.pcall('GET', KEYS[5 * i - 4])
  if lock and lock == ARGV[4 * i - 2] then
    known = known + 1
  elseif lock or redis.call('TYPE', KEYS[5 * i - 3]).ok ~= 'none' then
    return false
  end
end

local fences = {}
for i = 1, count do
  local lock, line, token = KEYS[5 * i - 4], KEYS[5 * i - 3], ARGV[4 * i - 2]
  if known == count then
    -- Asked again, because the answer was lost.
    local entry = redis.pcall('GET', line)
    if type(entry) ~= 'string' or string.sub(entry, 1, 32) ~= token then return false end
    fences[i] = string.match(entry, '^%x+\n(%d+)')
    if redis.call('PTTL', lock) < tonumber(ARGV[4 * i - 1]) then
      redis.call('PEXPIRE', lock, ARGV[4 * i - 1])
      redis.call('PEXPIRE', line, ARGV[4 * i])
    end
  elseif known > 0 then
    return false
  else
    fences[i] = number(KEYS[5 * i])
    local text = fences[i] .. '\n' .. string.sub(us, 1, -4) .. '\n' .. ARGV[4 * i + 1]
    redis.call('SET', lock, token, 'PX', ARGV[4 * i - 1])
    redis.call('SET', line, token .. '\n' .. text, 'PX', ARGV[4 * i])
    redis.call('PUBLISH', ARGV[1], lock .. '\0granted\n' .. text)
  end
end
return fences
