-- Reads the marker of a node.
--
-- KEYS  1 marker
-- Answers us, run, set id, nodes, longest ttl in ms; all but the first are empty without marker.

-- @time
local marker = redis.call('HMGET', KEYS[1], 'run', 'set', 'nodes', 'ttl_max')
for i = 1, 4 do marker[i] = marker[i] or '' end
return { us, unpack(marker) }
