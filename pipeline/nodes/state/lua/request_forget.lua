-- Forget a request, if it is bound to this job.
-- KEYS[1]  binding: JSON   KEYS[2]  lock
-- ARGV[1]  job
local bound = redis.call('GET', KEYS[1])
if bound and cjson.decode(bound).job_id == ARGV[1] then redis.call('DEL', KEYS[1], KEYS[2]) end
return 1
