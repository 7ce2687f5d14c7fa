-- Shared by the gate's scripts; put before each of them.
-- KEYS[1]  hash: limits and pauses of the queue, totals of its windows
-- KEYS[2]  sorted set: slots taken; member = holder, score = expiry, ms
-- KEYS[3]  hash: reservations; holder -> "expiry:cost:tokens"
-- KEYS[4]  hash: breaker of the provider (until, reason, probe, probe_until)
-- KEYS[5…8]  sorted sets: stamps of windows 1 to 4; member = "n:amount", score = time, ms
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local WINDOWS = 4

local function number(key, field) return tonumber(redis.call('HGET', key, field) or '') end

local function reservations()
  local cost, tokens, all = 0, 0, redis.call('HGETALL', KEYS[3])
  for i = 1, #all, 2 do
    local expiry, c, t = string.match(all[i + 1], '^(%d+):(%d+):(%d+)$')
    if tonumber(expiry) <= now then
      redis.call('HDEL', KEYS[3], all[i])
    else
      cost, tokens = cost + c, tokens + t
    end
  end
  return cost, tokens
end

-- Limit, stamped total, length in ms and unit of window i, after what left it was dropped; nil if there is no such window.
local function window(i)
  local limit = number(KEYS[1], 'limit' .. i)
  if not limit then return nil end
  local ms, key = number(KEYS[1], 'ms' .. i), KEYS[4 + i]
  -- The way to the provider varies: the window is a little longer here than there.
  local edge = now - ms - math.max(10, ms * 0.01)
  local total = number(KEYS[1], 'total' .. i) or 0
  while true do
    local gone = redis.call('ZRANGEBYSCORE', key, '-inf', edge, 'LIMIT', 0, 1000)
    if #gone == 0 then break end
    for _, member in ipairs(gone) do total = total - string.match(member, ':(-?%d+)$') end
    redis.call('ZREMRANGEBYRANK', key, 0, #gone - 1)
    redis.call('HSET', KEYS[1], 'total' .. i, total)
  end
  if total ~= 0 and redis.call('ZCARD', key) == 0 then
    total = 0
    redis.call('HSET', KEYS[1], 'total' .. i, 0)
  end
  return limit, total, ms, redis.call('HGET', KEYS[1], 'unit' .. i)
end

-- ms until `amount` leaves window i, at least 1.
local function until_free(i, ms, amount)
  local key, freed, start = KEYS[4 + i], 0, 0
  while true do
    local members = redis.call('ZRANGE', key, start, start + 99, 'WITHSCORES')
    if #members == 0 then return 50 end
    for m = 1, #members, 2 do
      freed = freed + string.match(members[m], ':(-?%d+)$')
      if freed >= amount then
        return math.max(1, math.ceil(members[m + 1] + ms + math.max(10, ms * 0.01) - now) + 1)
      end
    end
    start = start + 100
  end
end

-- Whether the gate is closed for `holder`: unready, or by an operator, a spend cap or a breaker: ms to wait and why, or nil;
-- third, whether the holder would be the breaker's probe.
local function closed(holder)
  -- Redis was emptied: until somebody has put limits and pauses back, nobody knows what is allowed.
  if not redis.call('HGET', KEYS[1], 'ready') then return 100, 'unready' end
  for _, why in ipairs({'operator', 'spend'}) do
    local till = number(KEYS[1], why .. '_until')
    if till and (till < 0 or till > now) then return till < 0 and 60000 or till - now, why end
  end
  local till = number(KEYS[4], 'until')
  if not till then return nil end
  if till > now then return till - now, 'breaker' end
  -- Half-open: one holder in the whole fleet finds out how the provider is.
  local probe = redis.call('HGET', KEYS[4], 'probe')
  local probe_until = number(KEYS[4], 'probe_until') or 0
  if probe and probe ~= holder and probe_until > now then return math.min(probe_until - now, 250), 'probe' end
  return nil, nil, true
end

local function grant(holder, ttl, probing)
  redis.call('ZADD', KEYS[2], now + ttl, holder)
  if probing then redis.call('HSET', KEYS[4], 'probe', holder, 'probe_until', now + ttl) end
end

-- Whether all slots are taken by others.
local function crowded(holder)
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
  local slots = number(KEYS[1], 'concurrency')
  return slots and not redis.call('ZSCORE', KEYS[2], holder) and redis.call('ZCARD', KEYS[2]) >= slots
end

-- ms to wait for room for cost and tokens in all windows, or nil if there is room. `cost_r`, `tokens_r`: reserved by others.
local function full(cost, tokens, cost_r, tokens_r)
  local longest
  for i = 1, WINDOWS do
    local limit, total, ms, unit = window(i)
    if limit then
      local amount, held = cost, cost_r
      if unit == 'tokens' then amount, held = tokens, tokens_r end
      -- What is larger than the window itself has the window to itself.
      amount = math.min(amount, limit)
      local over = total + held + amount - limit
      if over > 0 then
        -- Reservations become stamps or are released soon; stamps leave when their time is over.
        local wait = total + amount > limit and until_free(i, ms, total + amount - limit) or 20
        longest = math.max(longest or 0, wait)
      end
    end
  end
  return longest
end

local function stamp(holder, cost, tokens)
  local n = redis.call('HINCRBY', KEYS[1], 'n', 1)
  for i = 1, WINDOWS do
    local limit, total, ms, unit = window(i)
    if limit then
      local amount = unit == 'tokens' and tokens or cost
      redis.call('ZADD', KEYS[4 + i], now, n .. ':' .. amount)
      redis.call('PEXPIRE', KEYS[4 + i], math.ceil(ms * 1.1) + 1000)
      redis.call('HSET', KEYS[1], 'total' .. i, total + amount)
    end
  end
  return n
end
