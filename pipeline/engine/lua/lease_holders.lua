-- The current holders of a scope's leases.
-- KEYS[1]  sorted set: member = holder, score = expiry in ms of server time
-- Returns the holders.
local time = redis.call('TIME')
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', time[1] * 1000 + math.floor(time[2] / 1000))
return redis.call('ZRANGE', KEYS[1], 0, -1)
