-- The counter that votes are drawn from, KEYS 5, and how long companions live. `line.lua` tells
-- what the keys hold.
--
-- Put into the other scripts of this folder where they say so. Needs `time.lua` before it.

-- How far a hint may be ahead of the node's own next number, in microseconds.
local HINT_AHEAD_MAX = 60000000

-- How long the companions outlive the last claim in them.
local GRACE_MS = 60000

local function below(one, other)
  return #one < #other or #one == #other and one < other
end

-- Raises the counter to a number that was never given, and returns it: `Seed::draw`.
local function draw(hint)
  -- Mostly the counter is behind the clock, so that what it was need not be known before.
  local best = below(us, hint) and hint - us <= HINT_AHEAD_MAX and hint or us
  local last = redis.call('SET', KEYS[5], best, 'GET')
  if not last or below(last, best) then return best end
  if below(last, hint) and hint - last <= HINT_AHEAD_MAX + 1 then
    redis.call('SET', KEYS[5], hint)
    return hint
  end
  redis.call('SET', KEYS[5], last)
  redis.call('INCR', KEYS[5])
  return redis.call('GET', KEYS[5])
end

local function raise_counter(to)
  if below(redis.call('GET', KEYS[5]) or '0', to) then redis.call('SET', KEYS[5], to) end
end
