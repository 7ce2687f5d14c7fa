-- Close the gates of a provider's capability until a time, unless a later one is set.
-- KEYS[1]  hash: until (epoch ms), reason, streak (openings since it was last closed)
-- ARGV[1]  ms from now, or 0: grow by the streak   ARGV[2]  reason
-- ARGV[3]  base, ms, and ARGV[4] longest, ms, of a growing cool-down
-- Returns {ms left, 1 if this changed the time}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local before = tonumber(redis.call('HGET', KEYS[1], 'until') or '0')
local streak = tonumber(redis.call('HGET', KEYS[1], 'streak') or '0')
local wait = tonumber(ARGV[1])
if wait == 0 then wait = math.min(ARGV[3] * 2 ^ math.min(streak, 20), tonumber(ARGV[4])) end
-- Calls from before the opening report failures too: these neither count nor lengthen a growing wait.
local open = before > now
if open and (tonumber(ARGV[1]) == 0 or now + wait <= before) then return {before - now, 0} end
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now + wait), 'reason', ARGV[2])
redis.call('HDEL', KEYS[1], 'probe', 'probe_until')
if not open then redis.call('HINCRBY', KEYS[1], 'streak', 1) end
return {wait, 1}
