-- Note that a message for a place is about to be sent. (KEYS: place_lib.lua; 5: places)
-- ARGV[1]  queue   ARGV[2]  number   ARGV[3]  priority   ARGV[4]  its sender, or its predecessor
-- Returns 0 if another live holder has the place, so that the caller must send nothing; else 1.
local is_taken, other = taken(ARGV[1], redis.call('HGET', KEYS[5], ARGV[1] .. '|' .. ARGV[2]))
if is_taken and other and other ~= ARGV[4] then return 0 end
wait(KEYS[5], ARGV[1], ARGV[2], ARGV[3], 0)
return 1
