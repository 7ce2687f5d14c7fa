-- A result was handed out: nobody waits any more.
-- KEYS[1]  hash: job   KEYS[2]  set: sessions that wait   KEYS[3]  payload
-- ARGV[1]  states from which   ARGV[2]  the state afterwards
-- Returns 1, also if it was before; 0 if the job is not done, or unknown.
local state = redis.call('HGET', KEYS[1], 'state')
if state == ARGV[2] then return 1 end
if not has(ARGV[1], state) then return 0 end
redis.call('HSET', KEYS[1], 'state', ARGV[2])
redis.call('UNLINK', KEYS[2], KEYS[3])
return 1
