-- Put before each script: the server's time, and what several need.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- Whether a list in one text, ",A,B,", has a word.
local function has(list, word) return word and string.find(list, ',' .. word .. ',', 1, true) ~= nil end

-- A key ends with its last member: a sorted set by ends, and what goes with it.
local function end_with_last(set, ...)
  local last = redis.call('ZRANGE', set, -1, -1, 'WITHSCORES')[2]
  if not last then return end
  for _, key in ipairs({set, ...}) do redis.call('PEXPIREAT', key, last) end
end

-- Entries of a stream that were given out at least `idle` ms ago and not handled: `consumer`'s from now on, `count` at most.
-- Those that were given out over `most` times are left to become dead letters: who claims them makes them look alive.
-- (XAUTOCLAIM does not tell them apart, nor name those that the stream has no more, which are taken off the list here.)
local function claim(stream, group, consumer, idle, count, most)
  local found, start = {}, '-'
  count, most = tonumber(count), tonumber(most)
  while #found < count do
    local pending = redis.pcall('XPENDING', stream, group, 'IDLE', idle, start, '+', count)
    if pending.err or #pending == 0 then break end
    for _, one in ipairs(pending) do
      if one[4] <= most and #found < count then
        local entry = redis.call('XCLAIM', stream, group, consumer, idle, one[1])[1]
        if entry and entry[2] then found[#found + 1] = entry else redis.call('XACK', stream, group, one[1]) end
      end
    end
    start = '(' .. pending[#pending][1]
  end
  return found
end
