-- Note that a flow wants to be woken, and whether that needs a message.
-- KEYS[1]  string: when the flow will be woken by a message under way, ms of server time
-- ARGV[1]  ms from now
-- Returns 1 if no message under way comes as early, 0 otherwise.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local due = now + ARGV[1]
local planned = tonumber(redis.call('GET', KEYS[1]) or '0')
if planned > now and planned <= due then return 0 end
redis.call('SET', KEYS[1], due, 'PX', ARGV[1] + 1000)
return 1
