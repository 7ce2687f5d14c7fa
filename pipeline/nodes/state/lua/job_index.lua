-- List a new job. Harmless if it is listed.
-- KEYS[1]  sorted set: all jobs by creation   KEYS[2]  sorted set: jobs that are not released, by deadline
-- ARGV[1]  job   ARGV[2]  time until its deadline, ms   ARGV[3]  how many the first set may have
if redis.call('ZADD', KEYS[1], 'NX', now, ARGV[1]) == 1 then
  redis.call('ZADD', KEYS[2], now + ARGV[2], ARGV[1])
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - ARGV[3])
end
return 1
