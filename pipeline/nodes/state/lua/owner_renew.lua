-- Prolong an ownership, or take it if it is free.
-- KEYS[1]  owner of a node or a session: an instance; of an instance's name: a process
-- ARGV[1]  the calling owner   ARGV[2]  time to live, ms
-- Returns 1, or 0 if another is the owner.
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
