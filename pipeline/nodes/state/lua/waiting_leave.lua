-- Take a job out of line. If it was the first, its requester has used a turn. An empty line is deleted.
-- KEYS[1…5]  as in waiting_enter.lua
-- ARGV[1]  job
-- Returns 1 if the job was in line.
local known = redis.call('HGET', KEYS[3], ARGV[1])
if not known then return 0 end
local entry = cjson.decode(known)
local turns = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #turns, 2 do
  local first = redis.call('ZRANGEBYLEX', KEYS[2], '[' .. turns[i] .. '\1', '(' .. turns[i] .. '\2', 'LIMIT', 0, 1)[1]
  if first then
    if first == entry.member then
      redis.call('HSET', KEYS[5], 'turn', turns[i + 1])
      redis.call('ZADD', KEYS[1], turns[i + 1] + 1, entry.requester)
    end
    break
  end
end
redis.call('ZREM', KEYS[2], entry.member)
redis.call('HDEL', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[4], ARGV[1])
if redis.call('ZCARD', KEYS[2]) == 0 then redis.call('DEL', unpack(KEYS)) end
return 1
