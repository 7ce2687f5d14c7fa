-- A message is about to be sent for a place. (KEYS: place_lib.lua; 5: places)
-- ARGV[1]  queue   ARGV[2]  number   ARGV[3]  priority   ARGV[4]  who sends it, or its predecessor
-- Returns 0 if a living other has the place, so that nothing must be sent; 1 otherwise.
local is_taken, other = taken(ARGV[1], redis.call('HGET', KEYS[5], ARGV[1] .. '|' .. ARGV[2]))
if is_taken and other and other ~= ARGV[4] then return 0 end
wait(KEYS[5], ARGV[1], ARGV[2], ARGV[3], 0)
return 1
