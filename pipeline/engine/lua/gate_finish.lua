-- The holder is done, called or not: slot and reservation are given back. (KEYS: gate_lib.lua)
-- ARGV[1]  holder   ARGV[2]  tokens used beyond (or, negative, short of) the estimate that was stamped
-- ARGV[3]  number of the stamps of the call that was made, or 0   ARGV[4]  its cost in requests   ARGV[5]  its tokens
-- ARGV[6]  ms since it was sent. Stamps that are gone, since Redis was emptied during the call, are put back.
-- Only the answer tells when the provider can have seen the call at the latest. One that took longer than the queue's
-- fastest of late may have been seen that much later, by up to LATE_MS: so much later it leaves its windows.
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
