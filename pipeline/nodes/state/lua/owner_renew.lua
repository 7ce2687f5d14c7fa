-- Prolong an ownership; if nobody has it, take it.
-- KEYS[1]  owner of a node or a session: an instance; of an instance's name: a process
-- ARGV[1]  who renews   ARGV[2]  time to live, ms
-- Returns 1, or 0 if it is another's.
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
