-- The call is made now: the reservation becomes a stamp. Checks once more, for much may have happened since the
-- admission; without a reservation that still holds, as if it were asked for now. (KEYS: gate_lib.lua)
-- ARGV: as for gate_admit
-- Returns {go ahead, ms to wait, why not, number of the stamps}. Not ahead: slot and reservation are given back.
local holder, cost, tokens = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local held = redis.call('HGET', KEYS[3], holder)
local wait, why, probing = closed(holder)
redis.call('HDEL', KEYS[3], holder)
local expiry = held and tonumber(string.match(held, '^(%d+)'))
if not wait and not (expiry and expiry > now) then
  local cost_r, tokens_r = reservations()
  wait, why = full(cost, tokens, cost_r, tokens_r), 'limit'
end
if not wait and crowded(holder) then wait, why = 20, 'concurrency' end
if wait then
  redis.call('ZREM', KEYS[2], holder)
  return {0, wait, why}
end
grant(holder, tonumber(ARGV[5]), probing)
return {1, 0, '', stamp(holder, cost, tokens)}
