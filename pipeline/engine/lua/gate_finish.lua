-- The holder is done, called or not: slot and reservation are given back. (KEYS: gate_lib.lua)
-- ARGV[1]  holder   ARGV[2]  tokens used beyond (or, negative, short of) the estimate that was stamped
give_back(ARGV[1])
if redis.call('HGET', BREAKER, 'probe') == ARGV[1] then redis.call('HDEL', BREAKER, 'probe', 'probe_until') end
if ARGV[2] ~= '0' then
  local n = redis.call('HINCRBY', PROVIDER.hash, 'n', 1)
  for _, s in ipairs(SCOPES) do add(s, n, {tokens = ARGV[2]}) end
end
return 1
