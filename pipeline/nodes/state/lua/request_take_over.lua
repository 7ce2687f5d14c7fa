-- Take the lock of a request, to create its job anew.
-- KEYS[1]  lock
-- ARGV[1]  who   ARGV[2]  for how long, ms
-- Returns 1, or 0 if another has it.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
