-- How the gate stands, changing nothing but what time has changed. (KEYS: gate_lib.lua)
-- Returns {slots taken, reserved requests, operator_until, operator_reason, spend_until, spend_reason, breaker_until, breaker_reason,
--          now, then for each of the four windows: limit, total, ms, unit} with '' for what is not set.
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local cost_r = reservations()
local function text(key, field) return redis.call('HGET', key, field) or '' end
local found = {
  redis.call('ZCARD', KEYS[2]), cost_r, text(KEYS[1], 'operator_until'), text(KEYS[1], 'operator_reason'),
  text(KEYS[1], 'spend_until'), text(KEYS[1], 'spend_reason'), text(KEYS[4], 'until'), text(KEYS[4], 'reason'), now,
}
for i = 1, WINDOWS do
  local limit, total, ms, unit = window(i)
  for _, value in ipairs({limit or '', total or '', ms or '', unit or ''}) do found[#found + 1] = value end
end
return found
