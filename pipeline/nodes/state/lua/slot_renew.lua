-- Prolong reservations. Expired and released ones stay ended.
-- KEYS[1]  sorted set: reservations   KEYS[2]  hash: job -> since when, ms
-- ARGV[1]  time to live, ms   ARGV[2…]  jobs
for i = 2, #ARGV do
  local till = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if till and tonumber(till) > now then redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[i]) end
end
end_with_last(KEYS[1], KEYS[2])
return 1
