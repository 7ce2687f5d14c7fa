-- Give back the slot and reservation of a holder that is done, with or without a call. (KEYS: gate_lib.lua)
-- ARGV[1]  holder   ARGV[2]  tokens used beyond (or, negative, below) the stamped estimate
-- ARGV[3]  number of the call's stamps, or 0   ARGV[4]  its cost in requests   ARGV[5]  its tokens
-- ARGV[6]  ms since it was sent. Restores stamps that Redis lost during the call.
-- Only the answer bounds the time when the provider saw the call. A provider may have seen a call that took longer than
-- the queue's recent fastest that much later, up to LATE_MS: the call leaves its windows so much later.
local LATE_MS = 20
local holder, extra, made, at = ARGV[1], tonumber(ARGV[2]), ARGV[3], now - ARGV[6]
local late = 0
if made ~= '0' and QUEUE.fields.ready then
  local took = tonumber(ARGV[6])
  local fastest = number(QUEUE, 'fastest') or took
  late = math.min(math.max(0, took - fastest), LATE_MS)
  redis.call('HSET', QUEUE.hash, 'fastest', math.min(took, fastest * 1.002))
end
for _, s in ipairs(SCOPES) do
  stamp_call(s, holder, made == '0' and now or at)
  if made ~= '0' then put_back(s, made, ARGV[4], math.max(0, ARGV[5] + (s.fields.ready and 0 or extra)), at) end
  if late > 0 then move(s, made, ARGV[4], ARGV[5], 'INCR', late) end
end
give_back(holder)
if redis.call('HGET', BREAKER, 'probe') == holder then
  redis.call('HDEL', BREAKER, 'probe', 'probe_until')
  wake(PROVIDER)
end
if extra ~= 0 and PROVIDER.fields.ready then
  local n = redis.call('HINCRBY', PROVIDER.hash, 'n', 1)
  for _, s in ipairs(SCOPES) do add(s, n, {tokens = ARGV[2]}, now) end
end
return 1
