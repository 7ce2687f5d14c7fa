-- Release a job whose result was sent to all waiting sessions.
-- KEYS[1]  hash: job   KEYS[2]  set: waiting sessions   KEYS[3]  payload
-- ARGV[1]  states before   ARGV[2]  state afterwards
-- Returns 1 if the job is released now, 0 if it is not done or unknown.
local state = redis.call('HGET', KEYS[1], 'state')
if state == ARGV[2] then return 1 end
if not has(ARGV[1], state) then return 0 end
redis.call('HSET', KEYS[1], 'state', ARGV[2])
redis.call('UNLINK', KEYS[2], KEYS[3])
return 1
