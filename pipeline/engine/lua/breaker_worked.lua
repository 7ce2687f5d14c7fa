-- Note that a call to a provider's capability has just succeeded.
-- KEYS[1]  pybreaker's state   KEYS[2]  its count of failures   KEYS[3]  time of the last success, epoch ms
-- KEYS[4]  the hash of `breaker_open.lua`: a closed breaker forgets its streak
-- Returns {state, count}, false where a key is missing.
local time = redis.call('TIME')
redis.call('SET', KEYS[3], string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
if redis.call('HEXISTS', KEYS[4], 'until') == 0 then redis.call('HDEL', KEYS[4], 'streak') end
return redis.call('MGET', KEYS[1], KEYS[2])
