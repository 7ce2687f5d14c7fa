-- Make a session wait for a job, or return the result if the job is done.
-- KEYS[1]  hash: job   KEYS[2]  set: waiting sessions   KEYS[3]  result
-- ARGV[1]  session   ARGV[2]  states of jobs that are done
-- Returns {the job's fields and values, result or empty}; the first is empty if the job is unknown.
local job = redis.call('HGETALL', KEYS[1])
if #job == 0 then return {job, ''} end
if has(ARGV[2], redis.call('HGET', KEYS[1], 'state')) then return {job, redis.call('GET', KEYS[3]) or ''} end
redis.call('SADD', KEYS[2], ARGV[1])
redis.call('PEXPIRE', KEYS[2], redis.call('PTTL', KEYS[1]))
return {job, ''}
