-- Store a job's payload until the job's deadline.
-- KEYS[1]  hash: job   KEYS[2]  payload
-- ARGV[1]  payload   ARGV[2]  states of jobs that are done
-- Returns 1, or 0 if the job is done or unknown.
local state, deadline = unpack(redis.call('HMGET', KEYS[1], 'state', 'deadline_ms'))
if not state or has(ARGV[2], state) then return 0 end
redis.call('SET', KEYS[2], ARGV[1], 'PX', math.max(1000, deadline - now))
return 1
