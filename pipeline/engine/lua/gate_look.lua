-- The state of the gate. Changes nothing except that it drops what has expired. (KEYS: gate_lib.lua)
-- Returns {now, breaker_until, breaker_reason, then for queue and provider: slots taken, reserved requests, operator_until,
--          operator_reason, spend_until, spend_reason, and for each of its four windows: limit, total, ms, unit,
--          ms until it has room for one more; 0: now},
--          with '' for unset values.
local breaker = fields(BREAKER)
local found = {now, breaker['until'] or '', breaker.reason or ''}
local function put(value) found[#found + 1] = value or '' end
for _, s in ipairs(SCOPES) do
  redis.call('ZREMRANGEBYSCORE', s.slots, '-inf', now)
  put(redis.call('ZCARD', s.slots))
  put(held(s).waiting.requests)
  for _, field in ipairs({'operator_until', 'operator_reason', 'spend_until', 'spend_reason'}) do put(s.fields[field]) end
  for i = 1, WINDOWS do
    local limit, total, ms, unit, key = window(s, i)
    put(limit) put(total) put(ms) put(unit)
    put(limit and (total < limit and 0 or until_free(key, ms, total + 1 - limit)))
  end
end
return found
