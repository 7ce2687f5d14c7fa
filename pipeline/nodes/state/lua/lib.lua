-- Prepended to each script: the server's time, and shared functions.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- Whether a list in the form ",A,B," has a word.
local function has(list, word) return word and string.find(list, ',' .. word .. ',', 1, true) ~= nil end

-- Let a sorted set of ends, and the keys that belong to it, expire at its last end.
local function end_with_last(set, ...)
  local last = redis.call('ZRANGE', set, -1, -1, 'WITHSCORES')[2]
  if not last then return end
  for _, key in ipairs({set, ...}) do redis.call('PEXPIREAT', key, last) end
end

-- Claim at most `count` entries of a stream for `consumer` that were delivered at least `idle` ms ago and not handled.
-- Leave entries with more than `most` deliveries: claiming them resets the idle time after which they become dead letters.
-- (XAUTOCLAIM returns no delivery counts, and does not name deleted entries, which are taken off the pending list here.)
local function claim(stream, group, consumer, idle, count, most)
  local claimed, start = {}, '-'
  count, most = tonumber(count), tonumber(most)
  while #claimed < count do
    local pending = redis.pcall('XPENDING', stream, group, 'IDLE', idle, start, '+', count)
    if pending.err or #pending == 0 then break end
    for _, item in ipairs(pending) do
      if item[4] <= most and #claimed < count then
        local entry = redis.call('XCLAIM', stream, group, consumer, idle, item[1])[1]
        if entry and entry[2] then claimed[#claimed + 1] = entry else redis.call('XACK', stream, group, item[1]) end
      end
    end
    start = '(' .. pending[#pending][1]
  end
  return claimed
end
