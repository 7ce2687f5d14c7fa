-- Delete the binding of a request to this job.
-- KEYS[1]  binding: JSON   KEYS[2]  lock
-- ARGV[1]  job   ARGV[2]  least age of the binding, ms
-- Returns 1 if the binding was deleted.
local bound = redis.call('GET', KEYS[1])
local binding = bound and cjson.decode(bound)
if not binding or binding.job_id ~= ARGV[1] or now - (binding.at or 0) < tonumber(ARGV[2]) then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
return 1
