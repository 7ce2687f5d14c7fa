-- A message is worked on: its queue turns over by one, and the holder takes the place. (KEYS: place_lib.lua; 5: places)
-- ARGV[1]  queue   ARGV[2]  number   ARGV[3]  priority   ARGV[4]  holder   ARGV[5]  time to live, ms
-- ARGV[6]  a holder that is certainly gone, or ''
-- Returns '' if the place is the holder's now, or the living other who has it.
redis.call('HINCRBY', DELIVERED, ARGV[1] .. '|' .. ARGV[3], ARGV[6] == '' and 1 or 0)
local field = ARGV[1] .. '|' .. ARGV[2]
local is_taken, other = taken(ARGV[1], redis.call('HGET', KEYS[5], field))
if is_taken and other and other ~= ARGV[4] and other ~= ARGV[6] then return other end
-- Who is known is missed as soon as it says no more that it lives.
local since = is_present(ARGV[4]) and '0' or now
redis.call('HSET', KEYS[5], field, 'b ' .. ARGV[4] .. ' ' .. since .. ' ' .. string.format('%.0f', now + ARGV[5]))
redis.call('PEXPIRE', KEYS[5], KEPT_MS)
return ''
