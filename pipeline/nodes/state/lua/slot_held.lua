-- KEYS[1]  sorted set: reservations   KEYS[2]  hash: job -> since when, ms
-- Returns job, end and beginning of each reservation, in one list.
local found = {}
local held = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf', 'WITHSCORES')
for i = 1, #held, 2 do
  found[#found + 1], found[#found + 2], found[#found + 3] =
    held[i], tonumber(held[i + 1]), tonumber(redis.call('HGET', KEYS[2], held[i]) or '0')
end
return found
