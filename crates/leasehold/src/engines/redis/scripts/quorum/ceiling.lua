-- The greatest number that any counter of a node has reached.
--
-- KEYS  1 marker
-- ARGV  1 what the keys of counters begin with  2 how many counters there are
-- Answers the number.

local greatest = '0'
-- In pieces, because a call takes only so many arguments.
for from = 0, ARGV[2] - 1, 1024 do
  local keys = {}
  for i = from, math.min(from + 1023, ARGV[2] - 1) do
    keys[#keys + 1] = ARGV[1] .. string.format('%d', i)
  end
  for _, last in ipairs(redis.call('MGET', unpack(keys))) do
    if last and (#last > #greatest or #last == #greatest and last > greatest) then
      greatest = last
    end
  end
end
return greatest
