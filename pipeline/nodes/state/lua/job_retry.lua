-- End an attempt that gave no result, so that the job waits for another node.
-- KEYS[1]  hash: job
-- ARGV[1]  the attempt that is over   ARGV[2]  states before   ARGV[3]  state afterwards
-- ARGV[4]  1: the attempt does not count towards `max_attempts`
-- Returns the job's fields and values afterwards; empty if it is at another attempt or done, or this was its last.
local state, attempt, most = unpack(redis.call('HMGET', KEYS[1], 'state', 'attempt', 'max_attempts'))
if not state then return {} end
local over = tonumber(ARGV[1])
if tonumber(attempt) == over + 1 and state == ARGV[3] then return redis.call('HGETALL', KEYS[1]) end
if tonumber(attempt) ~= over or not has(ARGV[2], state) then return {} end
if ARGV[4] == '1' then redis.call('HINCRBY', KEYS[1], 'max_attempts', 1)
elseif over >= tonumber(most) then return {} end
redis.call('HSET', KEYS[1], 'state', ARGV[3], 'attempt', over + 1, 'attempt_until_ms', 0)
return redis.call('HGETALL', KEYS[1])
