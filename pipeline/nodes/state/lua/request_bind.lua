-- Bind a request to a job unless it is bound, so that all instances that receive the request share one job.
-- KEYS[1]  binding: JSON   KEYS[2]  lock: the home that creates the job
-- ARGV[1]  job   ARGV[2]  home   ARGV[3]  life of the binding, ms   ARGV[4]  life of the lock, ms
-- Returns {the job that the request is bound to, 1 if that is ARGV[1], 1 if another home is creating it}.
local bound = redis.call('GET', KEYS[1])
if bound then
  local job = cjson.decode(bound).job_id
  return {job, job == ARGV[1] and 1 or 0, job ~= ARGV[1] and redis.call('EXISTS', KEYS[2]) or 0}
end
redis.call('SET', KEYS[1], cjson.encode({job_id = ARGV[1], home = ARGV[2], at = now}), 'PX', ARGV[3])
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[4])
return {ARGV[1], 1, 0}
