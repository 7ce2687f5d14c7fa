-- Reserve one of a node's slots for a job.
-- KEYS[1]  sorted set: reservations; member = job, score = end, ms   KEYS[2]  hash: job -> since when, ms
-- KEYS[3]  hash: drops, until (the end of the cool-down)   KEYS[4]  hash: missing model -> "until:times:call"
-- ARGV[1]  job   ARGV[2]  slots   ARGV[3]  model   ARGV[4]  time to live, ms
-- Returns HELD, FULL, AVOIDED or MODEL_MISSING.
for _, job in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)) do redis.call('HDEL', KEYS[2], job) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  if tonumber(redis.call('HGET', KEYS[3], 'until') or '0') > now then return 'AVOIDED' end
  local missing = string.match(redis.call('HGET', KEYS[4], ARGV[3]) or '0:0', '^(%d+)')
  if tonumber(missing) > now then return 'MODEL_MISSING' end
  if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 'FULL' end
  redis.call('HSET', KEYS[2], ARGV[1], now)
end
redis.call('ZADD', KEYS[1], now + ARGV[4], ARGV[1])
end_with_last(KEYS[1], KEYS[2])
return 'HELD'
