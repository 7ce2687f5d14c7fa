-- Put a dead letter back into its inbox.
-- KEYS[1]  stream   KEYS[2]  stream of dead letters
-- ARGV[1]  entry   ARGV[2]  approximate limit of the inbox
-- Returns 1, or 0 if there is no such entry.
local entry = redis.call('XRANGE', KEYS[2], ARGV[1], ARGV[1])[1]
if not entry then return 0 end
local origin, fields = {source_id = 1, deliveries = 1, consumer = 1, moved_ms = 1}, {}
for i = 1, #entry[2], 2 do
  local name, value = entry[2][i], entry[2][i + 1]
  -- Change `sending`, since readers drop a message whose `sending` they remember.
  if name == 'sending' then value = value .. ' ' .. ARGV[1] end
  if not origin[name] then fields[#fields + 1], fields[#fields + 2] = name, value end
end
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', unpack(fields))
redis.call('XDEL', KEYS[2], ARGV[1])
return 1
