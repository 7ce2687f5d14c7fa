-- Take what was given out long ago and not handled.
-- KEYS[1]  stream
-- ARGV[1]  group   ARGV[2]  who asks   ARGV[3]  for how long nobody has handled it, ms   ARGV[4]  how many entries
-- ARGV[5]  how often one may be given out
-- Returns the entries.
if redis.call('EXISTS', KEYS[1]) == 0 then return {} end
return claim(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
