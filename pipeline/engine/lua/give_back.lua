-- Return a delivered message to the head of its queue: before messages sent later, behind messages sent earlier and
-- given back too. Otherwise two workers that are refused at the same time swap their messages.
-- KEYS[1]  hash of unacknowledged messages   KEYS[2]  sorted set of the same   KEYS[3]  the queue's list, head at right
-- KEYS[4]  KEYS[1] of place_lib.lua, for the time when a message of the list was given back
-- ARGV[1]  the message's tag   ARGV[2]  the message, as JSON   ARGV[3]  when it was sent, µs
-- Returns 1, or 0 if another process has returned it.
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('ZREM', KEYS[2], ARGV[1])
local time = redis.call('TIME')
redis.call('HSET', KEYS[4], 'given back|' .. KEYS[3], time[1] * 1000 + math.floor(time[2] / 1000))
local earlier = {}
while true do
  local head = redis.call('LINDEX', KEYS[3], -1)
  local headers = head and cjson.decode(head).headers
  if not headers or not headers.redelivered or (headers.penstock_sent or 0) >= tonumber(ARGV[3]) then break end
  earlier[#earlier + 1] = redis.call('RPOP', KEYS[3])
end
redis.call('RPUSH', KEYS[3], ARGV[2])
for i = #earlier, 1, -1 do redis.call('RPUSH', KEYS[3], earlier[i]) end
return 1
