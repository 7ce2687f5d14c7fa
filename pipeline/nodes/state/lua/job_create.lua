-- Create a job unless it exists, and make a session wait for it unless it is done.
-- KEYS[1]  hash: job   KEYS[2]  set: waiting sessions   KEYS[3]  payload
-- ARGV[1]  session, or empty   ARGV[2]  time until the deadline, ms   ARGV[3]  time to keep the job after it, ms
-- ARGV[4]  payload, or empty   ARGV[5]  the first state   ARGV[6]  states of jobs that are done
-- ARGV[7…]  further fields and their values
-- Returns the job's fields and values.
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'state', ARGV[5], 'attempt', 1, 'created_ms', now, 'deadline_ms', now + ARGV[2],
    unpack(ARGV, 7))
  redis.call('PEXPIRE', KEYS[1], ARGV[2] + ARGV[3])
  if ARGV[4] ~= '' then redis.call('SET', KEYS[3], ARGV[4], 'PX', ARGV[2]) end
end
if ARGV[1] ~= '' and not has(ARGV[6], redis.call('HGET', KEYS[1], 'state')) then
  redis.call('SADD', KEYS[2], ARGV[1])
  redis.call('PEXPIRE', KEYS[2], redis.call('PTTL', KEYS[1]))
end
return redis.call('HGETALL', KEYS[1])
