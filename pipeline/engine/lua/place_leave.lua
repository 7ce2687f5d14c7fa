-- Free a place, if the holder still has it. (KEYS[1]: places)
-- ARGV[1]  "queue|number"   ARGV[2]  holder
local place = redis.call('HGET', KEYS[1], ARGV[1])
if place and string.sub(place, 1, #ARGV[2] + 3) == 'b ' .. ARGV[2] .. ' ' then return redis.call('HDEL', KEYS[1], ARGV[1]) end
return 0
