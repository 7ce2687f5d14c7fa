-- Delete a presence, an ownership or a lock if it has this value. Keep another owner's.
-- KEYS[1]  key   ARGV[1]  value
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
