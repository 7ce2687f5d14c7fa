-- A job is released: it is live no more, and forgotten in a while.
-- KEYS[1…3]  as in job_list.lua
-- ARGV[1]  job   ARGV[2]  in how long, ms
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZADD', KEYS[3], 'XX', 'LT', now + ARGV[2], ARGV[1])
return 1
