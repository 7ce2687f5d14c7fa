-- Take or renew one lease of a scope that has a limited number of them.
-- KEYS[1]  sorted set: member = holder, score = expiry in ms of server time
-- ARGV[1]  holder   ARGV[2]  time to live, ms   ARGV[3]  limit
-- Returns 1 if held now, 0 if other holders have all leases.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) and redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then
  return 0
end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
-- The key expires with its last member.
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
redis.call('PEXPIREAT', KEYS[1], last[2])
return 1
