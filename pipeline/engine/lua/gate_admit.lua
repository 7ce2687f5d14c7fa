-- Ask for admission: a slot and a reservation in every window, or neither. (KEYS: gate_lib.lua)
-- ARGV[1]  holder   ARGV[2]  cost in requests   ARGV[3]  estimated tokens
-- ARGV[4]  reservation's time to live, ms   ARGV[5]  slot's time to live, ms
-- ARGV[6]  least ms from the admission to the stamp: admit the call this much early
-- ARGV[7]  the waiter to wake after a refusal ("list of tokens, blank, queue"); empty: none
-- Returns {granted, ms to wait, reason of a refusal}.
local holder, cost, tokens = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local waiter = ARGV[7] ~= '' and ARGV[7]
local wait, why, because, probing = closed(holder)
if not wait then
  for _, s in ipairs(SCOPES) do
    stamp_call(s, holder, now)
    redis.call('HDEL', s.reserved, holder)
  end
  wait, because = full(cost, tokens, tonumber(ARGV[6]), waiter)
  why = 'limit'
end
if not wait then
  wait, because = crowded(holder)
  why = 'concurrency'
end
if waiter then
  for _, s in ipairs(SCOPES) do
    if s ~= because then redis.call('ZREM', s.line, waiter) end
  end
end
if wait then
  if waiter then
    redis.call('ZADD', because.line, now, waiter)
    redis.call('PEXPIRE', because.line, PATIENCE_MS)
  end
  return {0, wait, why}
end
grant(holder, tonumber(ARGV[5]), probing)
local mine = (now + ARGV[4]) .. ':' .. cost .. ':' .. tokens .. ':0'
for _, s in ipairs(SCOPES) do redis.call('HSET', s.reserved, holder, mine) end
return {1, 0, ''}
