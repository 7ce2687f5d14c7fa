-- A node has not the model that it offered: ask it for another only, each time for longer.
-- KEYS[1]  hash: model -> "until:times:who"
-- ARGV[1]  model   ARGV[2]  who says so   ARGV[3]  the first time, ms   ARGV[4]  how often it is doubled at most
-- Returns 1 to the first who says so in this time, 0 to others.
local till, times, who = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or '0:0:', '^(%d+):(%d+):(.*)$')
if tonumber(till) > now then return who == ARGV[2] and 1 or 0 end
local longest = ARGV[3] * 2 ^ ARGV[4]
local cool_down = ARGV[3] * 2 ^ math.min(tonumber(times), ARGV[4])
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f:%d:%s', now + cool_down, times + 1, ARGV[2]))
redis.call('PEXPIRE', KEYS[1], 4 * longest)
return 1
