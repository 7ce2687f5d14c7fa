-- Who is next; those that have waited for too long are taken out.
-- KEYS[1…5]  as in waiting_enter.lua
-- ARGV[1]  how many
-- Returns {how many wait, {job, requester, home, …}}.
for _, job in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now)) do
  local known = redis.call('HGET', KEYS[2], job)
  if known then redis.call('ZREM', KEYS[1], cjson.decode(known).member) end
  redis.call('HDEL', KEYS[2], job)
  redis.call('ZREM', KEYS[3], job)
end
local found = {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '+inf', 'LIMIT', 0, ARGV[1])) do
  local job = string.match(member, '^%d+:(.*)$')
  local entry = cjson.decode(redis.call('HGET', KEYS[2], job))
  found[#found + 1], found[#found + 2], found[#found + 3] = job, entry.requester, entry.home
end
local waiting = redis.call('ZCARD', KEYS[1])
if waiting == 0 then redis.call('DEL', unpack(KEYS)) end
return {waiting, found}
