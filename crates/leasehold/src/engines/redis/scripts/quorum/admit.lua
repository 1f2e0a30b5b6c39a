-- Lets a node vote, if its marker still names the same run: raises all counters to the floor, and
-- writes the marker.
--
-- KEYS  1 marker
-- ARGV  1 the run that the marker must name now, empty for no marker  2 the run that may vote
--       3 set id  4 nodes  5 longest ttl in ms  6 floor  7 what the keys of counters begin with
--       8 how many counters there are  9 the run that the connection was opened to
-- Answers 1 if it was done.

local MARKER, FLOOR = KEYS[1], ARGV[6]
if ARGV[9] ~= ARGV[2] then return 0 end
if (redis.call('HGET', MARKER, 'run') or '') ~= ARGV[1] then return 0 end

local function below(one, other)
  return #one < #other or #one == #other and one < other
end

-- In pieces, because a call takes only so many arguments.
for from = 0, FLOOR ~= '0' and ARGV[8] - 1 or -1, 512 do
  local keys, raised = {}, {}
  for i = from, math.min(from + 511, ARGV[8] - 1) do
    keys[#keys + 1] = ARGV[7] .. string.format('%d', i)
  end
  for i, last in ipairs(redis.call('MGET', unpack(keys))) do
    if below(last or '0', FLOOR) then
      raised[#raised + 1] = keys[i]
      raised[#raised + 1] = FLOOR
    end
  end
  if #raised > 0 then redis.call('MSET', unpack(raised)) end
end
redis.call('HSET', MARKER, 'run', ARGV[2], 'set', ARGV[3], 'nodes', ARGV[4], 'ttl_max', ARGV[5])
return 1
