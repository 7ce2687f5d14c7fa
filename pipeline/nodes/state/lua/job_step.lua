-- Record a node's progress with an attempt.
-- KEYS[1]  hash: job
-- ARGV[1]  attempt   ARGV[2]  node   ARGV[3]  states before   ARGV[4]  state afterwards
-- ARGV[5]  states that include this progress already
-- Returns 1, or 0 if the attempt is another node's, or over.
local state, attempt, node = unpack(redis.call('HMGET', KEYS[1], 'state', 'attempt', 'node_id'))
if attempt ~= ARGV[1] or node ~= ARGV[2] then return 0 end
if has(ARGV[3], state) then
  redis.call('HSET', KEYS[1], 'state', ARGV[4])
  return 1
end
return has(ARGV[5], state) and 1 or 0
