-- The holder is done, called or not: slot and reservation are given back. (KEYS: gate_lib.lua)
-- ARGV[1]  holder   ARGV[2]  tokens used beyond (or, negative, short of) the estimate that was stamped
-- ARGV[3]  number of the stamps of the call that was made, or 0   ARGV[4]  its cost in requests   ARGV[5]  its tokens
-- ARGV[6]  ms since it was stamped. Stamps that are gone, since Redis was emptied during the call, are put back.
give_back(ARGV[1])
if redis.call('HGET', BREAKER, 'probe') == ARGV[1] then
  redis.call('HDEL', BREAKER, 'probe', 'probe_until')
  wake(PROVIDER)
end
if ARGV[2] ~= '0' then
  local n = redis.call('HINCRBY', PROVIDER.hash, 'n', 1)
  for _, s in ipairs(SCOPES) do add(s, n, {tokens = ARGV[2]}) end
end
if ARGV[3] ~= '0' then
  local age = tonumber(ARGV[6])
  for _, s in ipairs(SCOPES) do
    for i = 1, WINDOWS do
      local limit, total, ms, unit, key = window(s, i)
      local amount = unit == 'tokens' and ARGV[5] or ARGV[4]
      local member = ARGV[3] .. ':' .. amount
      if limit and age < ms and not redis.call('ZSCORE', key, member) then
        redis.call('ZADD', key, now - age, member)
        redis.call('PEXPIRE', key, math.ceil(ms * 1.1) + 1000)
        set_total(s, i, total + amount)
      end
    end
  end
end
return 1
