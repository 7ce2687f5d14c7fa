-- Take the ownership of a node or a session.
-- KEYS[1]  the owner: an instance
-- ARGV[1]  the new owner   ARGV[2]  time to live, ms
-- Returns the previous owner, or empty.
local before = redis.call('GET', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return before or ''
