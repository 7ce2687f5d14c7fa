-- Move entries that were given out too often, and that nobody handles now, to the dead letters. An entry is always in one
-- of both streams.
-- KEYS[1]  stream   KEYS[2]  stream of dead letters
-- ARGV[1]  group   ARGV[2]  for how long nobody has handled them, ms   ARGV[3]  how often they may be given out
-- ARGV[4]  how many are looked at in one go   ARGV[5]  how many dead letters are kept, about
-- Returns how many were moved.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local moved, start = 0, '-'
while true do
  local found = redis.pcall('XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[2], start, '+', ARGV[4])
  if found.err then return moved end
  for _, one in ipairs(found) do
    if one[4] > tonumber(ARGV[3]) then
      local entry = redis.call('XCLAIM', KEYS[1], ARGV[1], 'dlq', ARGV[2], one[1], 'RETRYCOUNT', one[4])[1]
      if entry and entry[2] then
        local fields = entry[2]
        for _, part in ipairs({'source_id', one[1], 'deliveries', one[4], 'consumer', one[2], 'moved_ms', now}) do
          fields[#fields + 1] = part
        end
        redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[5], '*', unpack(fields))
        moved = moved + 1
      end
      redis.call('XACK', KEYS[1], ARGV[1], one[1])
      redis.call('XDEL', KEYS[1], one[1])
    end
  end
  if #found < tonumber(ARGV[4]) then return moved end
  start = '(' .. found[#found][1]
end
