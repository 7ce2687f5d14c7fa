-- Start the cool-down of a node that dropped jobs, each time for longer. A running cool-down stays unchanged.
-- KEYS[1]  hash: drops, until
-- ARGV[1]  the first time, ms   ARGV[2]  most doublings
-- Returns the rest of the cool-down, ms.
local drops, till = unpack(redis.call('HMGET', KEYS[1], 'drops', 'until'))
drops, till = tonumber(drops or '0'), tonumber(till or '0')
if till > now then return till - now end
local longest = ARGV[1] * 2 ^ ARGV[2]
local cool_down = ARGV[1] * 2 ^ math.min(drops, ARGV[2])
redis.call('HSET', KEYS[1], 'drops', drops + 1, 'until', now + cool_down)
redis.call('PEXPIRE', KEYS[1], cool_down + 2 * longest)
return cool_down
