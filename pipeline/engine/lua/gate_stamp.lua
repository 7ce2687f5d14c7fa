-- Turn a reservation into a stamp, so that the call may be sent. Checks the gate again: it may have closed since the
-- admission. Without a valid reservation, acts like a request for admission. (KEYS: gate_lib.lua)
-- ARGV: as for gate_admit; the reservation's time to live is now that of the sending
-- Returns {granted, ms to wait, reason of a refusal, number of the stamps}. A refusal gives back slot and reservation,
-- unless the call is only early: then they stay, and the worker asks again.
local holder, cost, tokens = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local expiry, _, _, called = reservation(PROVIDER, holder)
local wait, why, _, probing = closed(holder)
local reserved = called == '0' and tonumber(expiry) > now
if not wait and reserved then
  local soon = early(cost, tokens)
  -- A little longer: a stamp moves by the time that the hand-over of its request takes.
  if soon and soon <= tonumber(ARGV[6]) + 20 then return {0, soon, 'early'} end
  if soon then wait, why = soon, 'limit' end
end
if not wait and not reserved then
  for _, s in ipairs(SCOPES) do
    stamp_call(s, holder, now)
    redis.call('HDEL', s.reserved, holder)
  end
  wait, why = full(cost, tokens, 0), 'limit'
end
if not wait then wait, why = crowded(holder), 'concurrency' end
if wait then
  give_back(holder)
  return {0, wait, why}
end
grant(holder, tonumber(ARGV[5]), probing)
local n = redis.call('HINCRBY', PROVIDER.hash, 'n', 1)
local mine = (now + ARGV[4]) .. ':' .. cost .. ':' .. tokens .. ':' .. string.format('%.0f', n)
for _, s in ipairs(SCOPES) do redis.call('HSET', s.reserved, holder, mine) end
return {1, 0, '', n}
