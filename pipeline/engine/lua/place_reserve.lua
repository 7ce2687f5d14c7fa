-- Reserve the places that scopes lack: the caller publishes a message for each. (KEYS: place_lib.lua, then the places
-- of each scope)
-- ARGV for each scope: queue, priority, how many places it needs
-- Returns the reserved numbers of each scope.
local results, sent = {}, {}
for i = 1, #KEYS - 4 do
  local places, queue, priority, wanted = KEYS[i + 4], ARGV[3 * i - 2], ARGV[3 * i - 1], tonumber(ARGV[3 * i])
  local all, live, have, reserved = redis.call('HGETALL', places), {}, 0, {}
  for f = 1, #all, 2 do
    local name, number = string.match(all[f], '^(.*)|(%d+)$')
    if name == queue then
      if taken(queue, all[f + 1]) then
        live[number] = true
        have = have + 1
      else
        redis.call('HDEL', places, all[f])
      end
    end
  end
  local number = 0
  while have < wanted do
    if not live[tostring(number)] then
      local into = list(queue, priority)
      wait(places, queue, number, priority, sent[into] or 0)
      sent[into] = (sent[into] or 0) + 1
      reserved[#reserved + 1] = number
      have = have + 1
    end
    number = number + 1
  end
  results[i] = reserved
end
return results
