-- Bind a request to a job, unless it is bound: one job, however many instances get the request.
-- KEYS[1]  binding: JSON   KEYS[2]  lock: who creates the job
-- ARGV[1]  job   ARGV[2]  who   ARGV[3]  how long the binding is kept, ms   ARGV[4]  the lock, ms
-- Returns {the job it is bound to, 1 if that is ours, 1 if somebody creates it now}.
local bound = redis.call('GET', KEYS[1])
if bound then
  local job = cjson.decode(bound).job_id
  return {job, job == ARGV[1] and 1 or 0, job ~= ARGV[1] and redis.call('EXISTS', KEYS[2]) or 0}
end
redis.call('SET', KEYS[1], cjson.encode({job_id = ARGV[1], home = ARGV[2], at = now}), 'PX', ARGV[3])
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[4])
return {ARGV[1], 1, 0}
