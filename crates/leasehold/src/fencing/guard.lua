-- Refuses an old fence and remembers a new one. The commands of the access follow.
--
-- KEYS  1 the greatest fence seen; further ones are the access's own
-- ARGV  1 the fence of the access; further ones are the access's own
-- Answers the error `FENCED GIVEN HIGHEST` if the access comes too late.

do
  local given, seen = ARGV[1], redis.call('GET', KEYS[1])
  if seen and not string.match(seen, '^%d+$') then
    return redis.error_reply('UNGUARDED what is at the key of the fence is no fence')
  end
  -- As text, shorter is smaller: numbers of a script are floating point and round large ones.
  if seen and (#given < #seen or (#given == #seen and given < seen)) then
    return redis.error_reply('FENCED ' .. given .. ' ' .. seen)
  end
  if seen ~= given then
    redis.call('SET', KEYS[1], given)
  end
end
