-- KEYS[1]  hash: job
-- Returns its fields and values.
return redis.call('HGETALL', KEYS[1])
