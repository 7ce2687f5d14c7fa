-- The prefix of the scripts of places. Places are in the broker's Redis, beside the messages: losing the
-- messages and losing the record of them is one event.
-- KEYS[1]  hash: handled messages; "queue|priority" -> number. "given back|list" -> time, ms: a gate refused a message,
--          so the list was not empty, although it looks empty while a worker holds its only message.
-- KEYS[2]  sorted set: live workers; score = expiry, ms   KEYS[3]  the same for their pools' processes
-- KEYS[4]  hash: the broker's unacknowledged messages
-- A scope's places are a hash: "queue|number" -> "w mark since priority" (a message waits in the queue) or
-- "b holder since until history" (the holder works on it); a holder is "process/message".
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local DELIVERED, UNACKED = KEYS[1], KEYS[4]
-- Processes renew their presence every few seconds. A new process counts as alive before its first renewal.
local UNKNOWN_MS, EMPTY_MS, KEPT_MS = 20000, 5000, 7 * 86400000

-- A queue is a list for each of kombu's priority steps.
local function list(queue, priority)
  return priority == '0' and queue or queue .. '\6\22' .. priority
end
local function delivered(queue, priority)
  return tonumber(redis.call('HGET', DELIVERED, queue .. '|' .. priority) or '0')
end

-- A message that begins to wait now is lost when its queue has turned over without it. While a worker holds a message
-- that its gate refuses, other messages may pass it: some for each worker.
local function mark(queue, priority)
  local before = redis.call('LLEN', list(queue, priority)) + redis.call('HLEN', UNACKED)
  return delivered(queue, priority) + before + 1 + 2 * redis.call('ZCARD', KEYS[2])
end

local function is_present(holder)
  local process = string.match(holder, '^(.*)/')
  for key = 2, 3 do
    local expiry = redis.call('ZSCORE', KEYS[key], process)
    if expiry and tonumber(expiry) > now then return true end
  end
  return false
end

-- The id of the history of the server's data. A restart or a failover, which may lose the last writes, begins another.
local replid
local function history()
  if not replid then
    local info = redis.pcall('INFO', 'replication') -- an access list may deny it
    replid = type(info) == 'string' and string.match(info, 'master_replid:(%x+)') or '-'
  end
  return replid
end

-- Whether a place is taken, and its live holder. A place is taken if its message waits and is not lost, or if its
-- holder lives. In an earlier history the message may have ended unrecorded, although its process lives: its place is
-- free, as after a loss of all data.
local function taken(queue, place)
  if not place then return false end
  local kind, a, b, c, d = string.match(place, '^(%a) (%S+) (%S+) (%S+) ?(%S*)$')
  if kind == 'b' then
    if tonumber(c) > now and d == history() and (is_present(a) or tonumber(b) > now - UNKNOWN_MS) then return true, a end
    return false
  end
  if delivered(queue, c) > tonumber(a) then return false end
  local given_back = redis.call('HGET', DELIVERED, 'given back|' .. list(queue, c)) or '0'
  return math.max(tonumber(b), tonumber(given_back)) > now - EMPTY_MS or redis.call('LLEN', list(queue, c)) > 0
end

local function wait(places, queue, number, priority, further)
  redis.call('HSET', places, queue .. '|' .. number, 'w ' .. mark(queue, priority) + further .. ' ' .. now .. ' ' .. priority)
  redis.call('PEXPIRE', places, KEPT_MS)
end
