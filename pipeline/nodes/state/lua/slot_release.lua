-- Release a reservation.
-- KEYS[1]  sorted set: reservations   KEYS[2]  hash: job -> since when, ms
-- ARGV[1]  job   ARGV[2]  the reservation's beginning; empty: any
-- Returns 1 if a reservation was released.
if ARGV[2] ~= '' and redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[2], ARGV[1])
return redis.call('ZREM', KEYS[1], ARGV[1])
