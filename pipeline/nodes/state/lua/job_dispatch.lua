-- Give a job to a node.
-- KEYS[1]  hash: job
-- ARGV[1]  attempt   ARGV[2]  node   ARGV[3]  states before   ARGV[4]  state afterwards
-- ARGV[5]  states in which a node has the job   ARGV[6]  the node's token
-- Returns 1, or 0 if another node has the attempt or it is over.
local state, attempt, node, timeout, deadline =
  unpack(redis.call('HMGET', KEYS[1], 'state', 'attempt', 'node_id', 'attempt_timeout_ms', 'deadline_ms'))
if attempt ~= ARGV[1] then return 0 end
if has(ARGV[5], state) and node == ARGV[2] then return 1 end
if not has(ARGV[3], state) then return 0 end
local till = math.min(now + timeout, tonumber(deadline))
redis.call('HSET', KEYS[1], 'state', ARGV[4], 'node_id', ARGV[2], 'node_token', ARGV[6], 'attempt_until_ms', till)
return 1
