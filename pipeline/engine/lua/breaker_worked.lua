-- Note that a call to a provider's capability succeeded just now.
-- KEYS[1]  pybreaker's state   KEYS[2]  its count of failures   KEYS[3]  when a call succeeded last, epoch ms
-- Returns {state, count}, false where a key is missing.
local time = redis.call('TIME')
redis.call('SET', KEYS[3], string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
return redis.call('MGET', KEYS[1], KEYS[2])
