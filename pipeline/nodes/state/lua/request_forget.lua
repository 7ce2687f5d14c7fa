-- Forget a request, if it is bound to this job.
-- KEYS[1]  binding: JSON   KEYS[2]  lock
-- ARGV[1]  job   ARGV[2]  only if it was bound so long ago, ms
-- Returns 1 if it was forgotten.
local bound = redis.call('GET', KEYS[1])
local binding = bound and cjson.decode(bound)
if not binding or binding.job_id ~= ARGV[1] or now - (binding.at or 0) < tonumber(ARGV[2]) then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
return 1
