-- Remove expired jobs from the lists.
-- KEYS[1…3]  as in job_list.lua
-- ARGV[1]  most jobs
-- Returns how many were removed.
local expired = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, ARGV[1])
if #expired > 0 then
  for _, key in ipairs(KEYS) do redis.call('ZREM', key, unpack(expired)) end
end
return #expired
