-- Take a node or a session.
-- KEYS[1]  its owner: an instance
-- ARGV[1]  who takes it   ARGV[2]  time to live, ms
-- Returns whose it was before, or empty.
local before = redis.call('GET', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return before or ''
