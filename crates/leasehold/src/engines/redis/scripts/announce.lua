-- Writes down what a client says of its long waits, in place of what it said before.
--
-- KEYS  1 the notices of a holder: a field for each of its clients
-- ARGV  1 the client  2 what it says; empty takes everything back  3 ms after which all of it lapses
-- Answers nothing.

if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
  return false
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return false
