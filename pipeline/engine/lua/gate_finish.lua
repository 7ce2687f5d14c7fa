-- The holder is done, called or not: slot and reservation are given back. (KEYS: gate_lib.lua)
-- ARGV[1]  holder   ARGV[2]  tokens used beyond (or, negative, short of) the estimate that was stamped
local n
redis.call('HDEL', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
if redis.call('HGET', KEYS[4], 'probe') == ARGV[1] then redis.call('HDEL', KEYS[4], 'probe', 'probe_until') end
if ARGV[2] ~= '0' then
  for i = 1, WINDOWS do
    local limit, total, ms, unit = window(i)
    if limit and unit == 'tokens' then
      n = n or redis.call('HINCRBY', KEYS[1], 'n', 1)
      redis.call('ZADD', KEYS[4 + i], now, n .. ':' .. ARGV[2])
      redis.call('PEXPIRE', KEYS[4 + i], math.ceil(ms * 1.1) + 1000)
      redis.call('HSET', KEYS[1], 'total' .. i, total + ARGV[2])
    end
  end
end
return 1
