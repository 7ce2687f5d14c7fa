-- Take from a bucket that refills evenly, so that no window's edge admits twice as much (GCRA).
-- KEYS[1]  string: the time when the bucket will be full again, µs of server time
-- ARGV[1]  µs in which one unit is refilled   ARGV[2]  units that a full bucket holds   ARGV[3]  units to take
-- Returns 0 if taken; else takes nothing and returns the ms until the bucket holds enough; -1: it never does.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local each, most, want = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if want > most then return -1 end
local full = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now) + want * each
local early = full - most * each - now
if early > 0 then return math.ceil(early / 1000) end
redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.max(1, math.ceil((full - now) / 1000)))
return 0
