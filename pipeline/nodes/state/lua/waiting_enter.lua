-- A job waits for a node: start-time fair queueing between requesters. Each job has a start, in jobs: one after its
-- requester's last, and never before the clock, which is the start of the job that was first when one last left.
-- KEYS[1]  sorted set: order; member = "number:job", score = start   KEYS[2]  hash: job -> JSON
-- KEYS[3]  sorted set: when each job stops waiting, ms   KEYS[4]  hash: requester -> start of its last   KEYS[5]  clock
-- ARGV[1]  job   ARGV[2]  requester   ARGV[3]  home   ARGV[4]  how long it waits at most, ms
-- Returns how many wait.
local known = redis.call('HGET', KEYS[2], ARGV[1])
local entry = known and cjson.decode(known)
if not entry then
  local last = tonumber(redis.call('HGET', KEYS[4], ARGV[2]) or '-1')
  local start = math.max(last + 1, tonumber(redis.call('HGET', KEYS[5], 'start') or '0'))
  -- Of the same start, who came first.
  local member = string.format('%015d:%s', redis.call('HINCRBY', KEYS[5], 'number', 1), ARGV[1])
  redis.call('ZADD', KEYS[1], start, member)
  redis.call('HSET', KEYS[4], ARGV[2], start)
  entry = {member = member, requester = ARGV[2]}
end
entry.home = ARGV[3]
redis.call('HSET', KEYS[2], ARGV[1], cjson.encode(entry))
redis.call('ZADD', KEYS[3], now + ARGV[4], ARGV[1])
end_with_last(KEYS[3], KEYS[1], KEYS[2], KEYS[4], KEYS[5])
return redis.call('ZCARD', KEYS[1])
