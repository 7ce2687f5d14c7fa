-- Move idle entries with too many deliveries to the dead letters. An entry is always in one of the two streams.
-- KEYS[1]  stream   KEYS[2]  stream of dead letters
-- ARGV[1]  group   ARGV[2]  least idle time, ms   ARGV[3]  most deliveries
-- ARGV[4]  entries read at a time   ARGV[5]  approximate limit of dead letters
-- Returns how many entries were moved.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local moved, start = 0, '-'
while true do
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[2], start, '+', ARGV[4])
  if pending.err then return moved end
  for _, item in ipairs(pending) do
    local id, consumer, _, deliveries = unpack(item)
    if deliveries > tonumber(ARGV[3]) then
      local entry = redis.call('XCLAIM', KEYS[1], ARGV[1], 'dlq', ARGV[2], id, 'RETRYCOUNT', deliveries)[1]
      if entry and entry[2] then
        local fields = entry[2]
        for _, part in ipairs({'source_id', id, 'deliveries', deliveries, 'consumer', consumer, 'moved_ms', now}) do
          fields[#fields + 1] = part
        end
        redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[5], '*', unpack(fields))
        moved = moved + 1
      end
      redis.call('XACK', KEYS[1], ARGV[1], id)
      redis.call('XDEL', KEYS[1], id)
    end
  end
  if #pending < tonumber(ARGV[4]) then return moved end
  start = '(' .. pending[#pending][1]
end
