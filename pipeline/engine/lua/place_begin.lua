-- A message is worked on: the holder takes its place, and its queue turns over by one unless the message comes again.
-- (KEYS: place_lib.lua; 5: places)
-- ARGV[1]  queue   ARGV[2]  number   ARGV[3]  priority   ARGV[4]  holder   ARGV[5]  time to live, ms
-- ARGV[6]  a holder that is certainly gone, or ''
-- Returns '' if the place is the holder's now, or the living other who has it.
local field = ARGV[1] .. '|' .. ARGV[2]
local place = redis.call('HGET', KEYS[5], field)
-- One that was begun here before, by a process that died, did not pass those that wait once more.
local again = place and string.find(place, string.match(ARGV[4], '/[^/]*$') .. ' ', 1, true)
if ARGV[6] == '' and not again then redis.call('HINCRBY', DELIVERED, ARGV[1] .. '|' .. ARGV[3], 1) end
local is_taken, other = taken(ARGV[1], place)
if is_taken and other and other ~= ARGV[4] and other ~= ARGV[6] then return other end
-- Who is known is missed as soon as it says no more that it lives.
local since = is_present(ARGV[4]) and '0' or now
redis.call('HSET', KEYS[5], field, 'b ' .. ARGV[4] .. ' ' .. since .. ' ' .. string.format('%.0f', now + ARGV[5]))
redis.call('PEXPIRE', KEYS[5], KEPT_MS)
return ''
