-- Wake all waiters of a scope, because its gate may be open again.
-- KEYS[1]  sorted set: the waiters; member = "list of tokens, blank, queue"   ARGV[1]  a token's time to live, ms
for _, waiter in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local list, queue = string.match(waiter, '^(%S+) (.+)$')
  redis.call('RPUSH', list, '{"properties": {"delivery_tag": "' .. queue .. '"}}')
  redis.call('PEXPIRE', list, ARGV[1])
end
redis.call('DEL', KEYS[1])
return 1
