-- The request has been handed over: its stamps are of now. Until then they were of the moment before it was sent,
-- which is too early for windows that the provider counts from when it has a request. (KEYS: gate_lib.lua)
-- ARGV[1]  number of the stamps   ARGV[2]  cost in requests   ARGV[3]  tokens
for i = 1, WINDOWS do
  local limit, total, ms, unit = window(i)
  if limit then
    local amount = unit == 'tokens' and ARGV[3] or ARGV[2]
    redis.call('ZADD', KEYS[4 + i], 'XX', now, ARGV[1] .. ':' .. amount)
  end
end
return 1
