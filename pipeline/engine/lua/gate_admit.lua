-- Ask to be let through: a slot and a reservation in every window, or neither. (KEYS: gate_lib.lua)
-- ARGV[1]  holder   ARGV[2]  cost in requests   ARGV[3]  estimated tokens
-- ARGV[4]  reservation's time to live, ms   ARGV[5]  slot's time to live, ms
-- Returns {granted, ms to wait, why not}.
local holder, cost, tokens = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local wait, why, probing = closed(holder)
if wait then return {0, wait, why} end
redis.call('HDEL', KEYS[3], holder)
local cost_r, tokens_r = reservations()
wait = full(cost, tokens, cost_r, tokens_r)
if wait then return {0, wait, 'limit'} end
if crowded(holder) then return {0, 20, 'concurrency'} end
grant(holder, tonumber(ARGV[5]), probing)
redis.call('HSET', KEYS[3], holder, (now + ARGV[4]) .. ':' .. cost .. ':' .. tokens)
return {1, 0, ''}
