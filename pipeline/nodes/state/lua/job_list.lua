-- List a new job. Harmless if it is listed.
-- KEYS[1]  sorted set: all jobs, by creation   KEYS[2]  sorted set: unreleased jobs, by deadline
-- KEYS[3]  sorted set: all jobs, by the time at which the lists drop them
-- ARGV[1]  job   ARGV[2]  time until its deadline, ms   ARGV[3]  time to keep it after that, ms
-- ARGV[4]  most members of the first set
if redis.call('ZADD', KEYS[1], 'NX', now, ARGV[1]) == 1 then
  redis.call('ZADD', KEYS[2], now + ARGV[2], ARGV[1])
  redis.call('ZADD', KEYS[3], now + ARGV[2] + ARGV[3], ARGV[1])
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - ARGV[4])
end
return 1
