-- Take jobs that are forgotten off the lists.
-- KEYS[1…3]  as in job_list.lua
-- ARGV[1]  how many at most
-- Returns how many.
local gone = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, ARGV[1])
if #gone > 0 then
  for _, key in ipairs(KEYS) do redis.call('ZREM', key, unpack(gone)) end
end
return #gone
