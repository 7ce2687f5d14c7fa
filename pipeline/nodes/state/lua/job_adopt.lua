-- Give a job a new home, which schedules it from now on.
-- KEYS[1]  hash: job
-- ARGV[1]  old home   ARGV[2]  new home   ARGV[3]  states in which a job needs no home
-- Returns 1, or 0 if the job has another home, needs none, or is unknown.
local state, home = unpack(redis.call('HMGET', KEYS[1], 'state', 'home'))
if not state or has(ARGV[3], state) then return 0 end
if home == ARGV[2] then return 1 end
if home ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'home', ARGV[2])
return 1
