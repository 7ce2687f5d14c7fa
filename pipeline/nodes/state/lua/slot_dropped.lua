-- A node has dropped jobs: leave it alone, each time for longer. What is noticed meanwhile is the same drop.
-- KEYS[1]  hash: drops, until
-- ARGV[1]  the first time, ms   ARGV[2]  how often the time is doubled at most
-- Returns how long it is left alone from now, ms.
local drops, till = unpack(redis.call('HMGET', KEYS[1], 'drops', 'until'))
drops, till = tonumber(drops or '0'), tonumber(till or '0')
if till > now then return till - now end
local longest = ARGV[1] * 2 ^ ARGV[2]
local cool_down = ARGV[1] * 2 ^ math.min(drops, ARGV[2])
redis.call('HSET', KEYS[1], 'drops', drops + 1, 'until', now + cool_down)
redis.call('PEXPIRE', KEYS[1], cool_down + 2 * longest)
return cool_down
