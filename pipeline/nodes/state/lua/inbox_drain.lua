-- Claim entries of a dead instance's inbox, unless another instance drains it.
-- KEYS[1]  stream   KEYS[2]  lease of the instance that drains it
-- ARGV[1]  group   ARGV[2]  the calling instance   ARGV[3]  the lease, ms   ARGV[4]  most entries
-- ARGV[5]  most deliveries of an entry
-- Returns {1, entries}; {0, {}} if another instance holds the lease.
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[2] then return {0, {}} end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
if redis.call('EXISTS', KEYS[1]) == 0 then return {1, {}} end
redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0')
local taken = claim(KEYS[1], ARGV[1], ARGV[2], 0, ARGV[4], ARGV[5])
local room = ARGV[4] - #taken
if room > 0 then
  local fresh = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', room, 'STREAMS', KEYS[1], '>')
  for _, entry in ipairs(fresh and fresh[1] and fresh[1][2] or {}) do taken[#taken + 1] = entry end
end
return {1, taken}
