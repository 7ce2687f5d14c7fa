-- Another instance schedules a job from now on.
-- KEYS[1]  hash: job
-- ARGV[1]  who did   ARGV[2]  who does   ARGV[3]  states of jobs that nobody schedules
-- Returns 1, or 0 if somebody else has it, or there is nothing to do.
local state, home = unpack(redis.call('HMGET', KEYS[1], 'state', 'home'))
if not state or has(ARGV[3], state) then return 0 end
if home == ARGV[2] then return 1 end
if home ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'home', ARGV[2])
return 1
