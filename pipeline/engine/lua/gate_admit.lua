-- Ask for admission: a slot and a reservation in every window, or neither. (KEYS: gate_lib.lua)
-- ARGV[1]  holder   ARGV[2]  cost in requests   ARGV[3]  estimated tokens
-- ARGV[4]  reservation's time to live, ms   ARGV[5]  slot's time to live, ms
-- ARGV[6]  ms that a call takes at least from here to its stamp: it is admitted this much early
-- Returns {granted, ms to wait, why not}.
local holder, cost, tokens = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local wait, why, probing = closed(holder)
if wait then return {0, wait, why} end
for _, s in ipairs(SCOPES) do redis.call('HDEL', s.reserved, holder) end
wait = full(cost, tokens, tonumber(ARGV[6]))
if wait then return {0, wait, 'limit'} end
if crowded(holder) then return {0, 20, 'concurrency'} end
grant(holder, tonumber(ARGV[5]), probing)
local held = (now + ARGV[4]) .. ':' .. cost .. ':' .. tokens
for _, s in ipairs(SCOPES) do redis.call('HSET', s.reserved, holder, held) end
return {1, 0, ''}
