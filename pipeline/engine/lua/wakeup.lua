-- Note the wake-up of a flow; decide whether it needs a message.
-- KEYS[1]  string: the time at which a message under way will wake the flow, ms of server time
-- ARGV[1]  ms from now
-- Returns 1 if no message under way comes as early, else 0.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local due = now + ARGV[1]
local planned = tonumber(redis.call('GET', KEYS[1]) or '0')
if planned > now and planned <= due then return 0 end
redis.call('SET', KEYS[1], due, 'PX', ARGV[1] + 1000)
return 1
