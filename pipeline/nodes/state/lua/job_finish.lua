-- Store a job's result.
-- KEYS[1]  hash: job   KEYS[2]  set: waiting sessions   KEYS[3]  result   KEYS[4]  payload
-- ARGV[1]  attempt; empty: the gateway ends the job   ARGV[2]  node   ARGV[3]  states before
-- ARGV[4]  state afterwards   ARGV[5]  states in which a node has the job   ARGV[6]  result
-- ARGV[7]  outcome   ARGV[8]  code   ARGV[9]  message   ARGV[10]  time to keep the job and its result, ms
-- Returns {the job's fields and values, waiting sessions, 1 if an earlier call finished the job in the same way}. The
-- first is empty if the attempt is over or another node's, or the job is done or unknown.
local state, attempt, node, by = unpack(redis.call('HMGET', KEYS[1], 'state', 'attempt', 'node_id', 'finished_by'))
local author = ARGV[1] ~= '' and ARGV[1] .. ' ' .. ARGV[2] or ARGV[7] .. ' ' .. ARGV[8] .. ' ' .. ARGV[2]
if by then
  if by ~= author then return {{}, {}, 0} end
  return {redis.call('HGETALL', KEYS[1]), redis.call('SMEMBERS', KEYS[2]), 1}
end
if not has(ARGV[3], state) then return {{}, {}, 0} end
if ARGV[1] ~= '' and (attempt ~= ARGV[1] or node ~= ARGV[2] or not has(ARGV[5], state)) then return {{}, {}, 0} end
redis.call('HSET', KEYS[1], 'state', ARGV[4], 'outcome', ARGV[7], 'error_code', ARGV[8], 'error', ARGV[9],
  'finished_ms', now, 'finished_by', author)
redis.call('SET', KEYS[3], ARGV[6], 'PX', ARGV[10])
redis.call('UNLINK', KEYS[4])
redis.call('PEXPIRE', KEYS[1], ARGV[10])
redis.call('PEXPIRE', KEYS[2], ARGV[10])
return {redis.call('HGETALL', KEYS[1]), redis.call('SMEMBERS', KEYS[2]), 0}
