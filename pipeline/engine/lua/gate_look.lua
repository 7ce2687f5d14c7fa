-- The state of the gate; changes nothing but what time has changed. (KEYS: gate_lib.lua)
-- Returns {now, breaker_until, breaker_reason, then for queue and provider: slots taken, reserved requests, operator_until,
--          operator_reason, spend_until, spend_reason, and for each of its four windows: limit, total, ms, unit},
--          with '' for what is not set.
local breaker = fields(BREAKER)
local found = {now, breaker['until'] or '', breaker.reason or ''}
local function put(value) found[#found + 1] = value or '' end
for _, s in ipairs(SCOPES) do
  redis.call('ZREMRANGEBYSCORE', s.slots, '-inf', now)
  put(redis.call('ZCARD', s.slots))
  put(held(s).waiting.requests)
  for _, field in ipairs({'operator_until', 'operator_reason', 'spend_until', 'spend_reason'}) do put(s.fields[field]) end
  for i = 1, WINDOWS do
    local limit, total, ms, unit = window(s, i)
    put(limit) put(total) put(ms) put(unit)
  end
end
return found
