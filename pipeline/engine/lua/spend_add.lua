-- Count what a call cost, and close the provider's queues when its day's cap is reached.
-- KEYS[1]  string: the cost of the provider's day so far   KEYS[2]  hash of the provider's scope: cap, spend_until, …
-- ARGV[1]  cost   ARGV[2]  when the provider's day ends, epoch ms
-- Returns the day's cost including this call, as text; nil, having done nothing, if the sum is not known.
if redis.call('EXISTS', KEYS[1]) == 0 then return nil end
local spent = redis.call('INCRBYFLOAT', KEYS[1], ARGV[1])
local cap = tonumber(redis.call('HGET', KEYS[2], 'cap') or '0')
if cap > 0 and tonumber(spent) >= cap then
  local reason = string.format('%.2f of %.2f spent today', spent, cap)
  redis.call('HSET', KEYS[2], 'spend_until', ARGV[2], 'spend_reason', reason)
end
return spent
