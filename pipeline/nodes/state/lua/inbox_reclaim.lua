-- Claim entries that were delivered long ago and not handled.
-- KEYS[1]  stream
-- ARGV[1]  group   ARGV[2]  the calling instance   ARGV[3]  least idle time, ms   ARGV[4]  most entries
-- ARGV[5]  most deliveries of an entry
-- Returns the entries.
if redis.call('EXISTS', KEYS[1]) == 0 then return {} end
return claim(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
