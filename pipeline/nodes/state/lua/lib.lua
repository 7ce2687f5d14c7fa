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
