-- Return the first jobs of a line, after removing those whose wait has expired.
-- KEYS[1…5]  as in waiting_enter.lua
-- ARGV[1]  most jobs
-- Returns {length of the line, {job, requester, home, …}}.
for _, job in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now)) do
  local known = redis.call('HGET', KEYS[3], job)
  if known then redis.call('ZREM', KEYS[2], cjson.decode(known).member) end
  redis.call('HDEL', KEYS[3], job)
  redis.call('ZREM', KEYS[4], job)
end
local waiting = redis.call('ZCARD', KEYS[2])
if waiting == 0 then redis.call('DEL', unpack(KEYS)) end
local count, queues, heads = tonumber(ARGV[1]), {}, {}
local turns = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #turns, 2 do
  -- The first `count` jobs belong to the first `count` requesters.
  if #queues == count then break end
  local own = redis.call('ZRANGEBYLEX', KEYS[2], '[' .. turns[i] .. '\1', '(' .. turns[i] .. '\2', 'LIMIT', 0, count)
  if #own > 0 then queues[#queues + 1] = {turn = tonumber(turns[i + 1]), requester = turns[i], own = own, place = 1} end
end
-- Requesters of the same turn have the order of the sorted set.
local function is_before(left, right)
  return left.turn < right.turn or (left.turn == right.turn and left.requester < right.requester)
end
while #heads < 3 * count do
  local first
  for _, queue in ipairs(queues) do
    if queue.own[queue.place] and (not first or is_before(queue, first)) then first = queue end
  end
  if not first then break end
  local job = string.match(first.own[first.place], '^[^\1]*\1%d+:(.*)$')
  local entry = cjson.decode(redis.call('HGET', KEYS[3], job))
  heads[#heads + 1], heads[#heads + 2], heads[#heads + 3] = job, entry.requester, entry.home
  first.turn, first.place = first.turn + 1, first.place + 1
end
return {waiting, heads}
