-- Put a job in line. Requesters take turns: the requester with the lowest turn is next, and then gets the turn after it.
-- A requester without jobs in line enters at the current turn, so it cannot save turns up.
-- KEYS[1]  sorted set: requester -> number of its next turn
-- KEYS[2]  sorted set, all of one score: "requester \1 number:job", which keeps each requester's jobs in order
-- KEYS[3]  hash: job -> JSON   KEYS[4]  sorted set: when each job leaves the line, ms   KEYS[5]  hash: turn, number
-- ARGV[1]  job   ARGV[2]  requester   ARGV[3]  home   ARGV[4]  longest wait, ms
-- Returns the length of the line.
local known = redis.call('HGET', KEYS[3], ARGV[1])
local entry = known and cjson.decode(known)
if not entry then
  local own = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[2]) or '0')
  local current = tonumber(redis.call('HGET', KEYS[5], 'turn') or '0')
  redis.call('ZADD', KEYS[1], math.max(own, current), ARGV[2])
  local number = redis.call('HINCRBY', KEYS[5], 'number', 1)
  entry = {member = string.format('%s\1%015d:%s', ARGV[2], number, ARGV[1]), requester = ARGV[2]}
  redis.call('ZADD', KEYS[2], 0, entry.member)
end
entry.home = ARGV[3]
redis.call('HSET', KEYS[3], ARGV[1], cjson.encode(entry))
redis.call('ZADD', KEYS[4], now + ARGV[4], ARGV[1])
end_with_last(KEYS[4], KEYS[1], KEYS[2], KEYS[3], KEYS[5])
return redis.call('ZCARD', KEYS[2])
