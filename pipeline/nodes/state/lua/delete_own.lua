-- Delete a key if it has this value: a presence, an ownership or a lock that is another's stays.
-- KEYS[1]  key   ARGV[1]  value
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
