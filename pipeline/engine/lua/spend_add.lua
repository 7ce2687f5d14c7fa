-- Add a call's cost, and close the provider's queues when the sum reaches its daily cap.
-- KEYS[1]  string: the cost of the provider's day so far   KEYS[2]  hash of the provider's scope: cap, spend_until, …
-- ARGV[1]  cost   ARGV[2]  end of the provider's day, epoch ms
-- Returns 1 if that closed them, 0 if not; nil, having done nothing, if the sum is unknown.
-- The format of `engine.views.money`.
local function money(amount)
  local digits = 4
  if amount > 0 and amount < 0.001 then digits = 1 - math.floor(math.log10(amount)) end
  return string.format('%.' .. digits .. 'f', amount)
end
local before = redis.call('GET', KEYS[1])
if not before then return nil end
-- Not INCRBYFLOAT: in a script, it makes Redis 6.2 crash (it rewrites its own arguments).
local spent = string.format('%.17g', before + ARGV[1])
redis.call('SET', KEYS[1], spent, 'KEEPTTL')
local cap = tonumber(redis.call('HGET', KEYS[2], 'cap') or '0')
if cap > 0 and tonumber(spent) >= cap then
  local reason = money(tonumber(spent)) .. ' of ' .. money(cap) .. ' spent today'
  local before_that = redis.call('HGET', KEYS[2], 'spend_until')
  redis.call('HSET', KEYS[2], 'spend_until', ARGV[2], 'spend_reason', reason)
  return before_that == ARGV[2] and 0 or 1
end
return 0
