-- Take a place for a message's holder. Its queue turns over by one, unless the message was redelivered.
-- (KEYS: place_lib.lua; 5: places)
-- ARGV[1]  queue   ARGV[2]  number   ARGV[3]  priority   ARGV[4]  holder   ARGV[5]  time to live, ms
-- ARGV[6]  a holder that is certainly dead, or ''
-- Returns '' if the place is the holder's now, or the place's other live holder.
local field = ARGV[1] .. '|' .. ARGV[2]
local place = redis.call('HGET', KEYS[5], field)
-- A message that a dead process had begun here did not pass the waiting messages a second time.
local repeated = place and string.find(place, string.match(ARGV[4], '/[^/]*$') .. ' ', 1, true)
if ARGV[6] == '' and not repeated then redis.call('HINCRBY', DELIVERED, ARGV[1] .. '|' .. ARGV[3], 1) end
local is_taken, other = taken(ARGV[1], place)
if is_taken and other and other ~= ARGV[4] and other ~= ARGV[6] then return other end
-- 0: a present process counts as dead as soon as its presence expires.
local since = is_present(ARGV[4]) and '0' or now
local ends = string.format('%.0f', now + ARGV[5])
redis.call('HSET', KEYS[5], field, table.concat({'b', ARGV[4], since, ends, history()}, ' '))
redis.call('PEXPIRE', KEYS[5], KEPT_MS)
return ''
