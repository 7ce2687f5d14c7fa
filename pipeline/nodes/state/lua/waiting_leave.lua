-- A job waits no more. When none does, all is forgotten.
-- KEYS[1…5]  as in waiting_enter.lua
-- ARGV[1]  job
-- Returns 1 if it waited.
local known = redis.call('HGET', KEYS[2], ARGV[1])
if not known then return 0 end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if first[2] then redis.call('HSET', KEYS[5], 'start', first[2]) end
redis.call('ZREM', KEYS[1], cjson.decode(known).member)
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
if redis.call('ZCARD', KEYS[1]) == 0 then redis.call('DEL', unpack(KEYS)) end
return 1
