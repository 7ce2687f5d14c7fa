-- Take a released job off the list of live jobs, and let it expire. Skip a job that was created again since.
-- KEYS[1…3]  as in job_list.lua
-- ARGV[1]  job   ARGV[2]  time until it expires, ms   ARGV[3]  its score in KEYS[2] when it was released
if tonumber(redis.call('ZSCORE', KEYS[2], ARGV[1]) or '') ~= tonumber(ARGV[3]) then return 0 end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZADD', KEYS[3], 'XX', 'LT', now + ARGV[2], ARGV[1])
return 1
