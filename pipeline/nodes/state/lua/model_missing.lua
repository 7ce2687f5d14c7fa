-- Mark a model as missing at a node that offered it, each time for longer.
-- KEYS[1]  hash: model -> "until:times:call"
-- ARGV[1]  model   ARGV[2]  the call's id   ARGV[3]  the first time, ms   ARGV[4]  most doublings
-- Returns 1, or 0 while another call's mark lasts.
local till, times, caller = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or '0:0:', '^(%d+):(%d+):(.*)$')
if tonumber(till) > now then return caller == ARGV[2] and 1 or 0 end
local longest = ARGV[3] * 2 ^ ARGV[4]
local cool_down = ARGV[3] * 2 ^ math.min(tonumber(times), ARGV[4])
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f:%d:%s', now + cool_down, times + 1, ARGV[2]))
redis.call('PEXPIRE', KEYS[1], 4 * longest)
return 1
