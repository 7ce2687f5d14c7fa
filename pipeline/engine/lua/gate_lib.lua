-- Shared by the gate's scripts; put before each of them. A gate has two scopes, and both must admit a message: its
-- queue's, and its provider's, which all queues of the provider share.
-- KEYS[1]      hash: limits and pauses of the queue, totals of its windows
-- KEYS[2]      sorted set: slots taken; member = holder, score = expiry, ms
-- KEYS[3]      hash: reservations; holder -> "expiry:cost:tokens"
-- KEYS[4…7]    sorted sets: stamps of windows 1 to 4; member = "n:amount", score = time, ms
-- KEYS[8…14]   the same seven of the provider
-- KEYS[15]     hash: breaker of the provider's capability (until, reason, probe, probe_until)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local WINDOWS, BREAKER = 4, KEYS[15]

local function scope(first)
  return {hash = KEYS[first], slots = KEYS[first + 1], reserved = KEYS[first + 2], windows = first + 2}
end
local QUEUE, PROVIDER = scope(1), scope(8)
local SCOPES = {QUEUE, PROVIDER}

local function number(key, field) return tonumber(redis.call('HGET', key, field) or '') end

-- Requests and tokens that are reserved in a scope.
local function reservations(s)
  local cost, tokens, all = 0, 0, redis.call('HGETALL', s.reserved)
  for i = 1, #all, 2 do
    local expiry, c, t = string.match(all[i + 1], '^(%d+):(%d+):(%d+)$')
    if tonumber(expiry) <= now then
      redis.call('HDEL', s.reserved, all[i])
    else
      cost, tokens = cost + c, tokens + t
    end
  end
  return cost, tokens
end

-- Limit, stamped total, length in ms, unit and key of window i, once what left it is dropped; nil without such a window.
local function window(s, i)
  local limit = number(s.hash, 'limit' .. i)
  if not limit then return nil end
  local ms, key = number(s.hash, 'ms' .. i), KEYS[s.windows + i]
  -- The way to the provider varies: the window is a little longer here than there.
  local edge = now - ms - math.max(10, ms * 0.01)
  local total = number(s.hash, 'total' .. i) or 0
  while true do
    local gone = redis.call('ZRANGEBYSCORE', key, '-inf', edge, 'LIMIT', 0, 1000)
    if #gone == 0 then break end
    for _, member in ipairs(gone) do total = total - string.match(member, ':(-?%d+)$') end
    redis.call('ZREMRANGEBYRANK', key, 0, #gone - 1)
    redis.call('HSET', s.hash, 'total' .. i, total)
  end
  if total ~= 0 and redis.call('ZCARD', key) == 0 then
    total = 0
    redis.call('HSET', s.hash, 'total' .. i, 0)
  end
  return limit, total, ms, redis.call('HGET', s.hash, 'unit' .. i), key
end

-- Put amounts into the scope's windows, as of now. `amount_of`: the amount by unit, nil for none.
local function add(s, n, amount_of)
  for i = 1, WINDOWS do
    local limit, total, ms, unit, key = window(s, i)
    local amount = limit and amount_of[unit]
    if amount then
      redis.call('ZADD', key, now, n .. ':' .. amount)
      redis.call('PEXPIRE', key, math.ceil(ms * 1.1) + 1000)
      redis.call('HSET', s.hash, 'total' .. i, total + amount)
    end
  end
end

-- ms until `amount` leaves a window of `ms`, at least 1.
local function until_free(key, ms, amount)
  local freed, start = 0, 0
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
  for _, s in ipairs(SCOPES) do
    -- Redis was emptied: until somebody has put limits and pauses back, nobody knows what is allowed.
    if not redis.call('HGET', s.hash, 'ready') then return 100, 'unready' end
    for _, why in ipairs({'operator', 'spend'}) do
      local till = number(s.hash, why .. '_until')
      if till and (till < 0 or till > now) then return till < 0 and 60000 or till - now, why end
    end
  end
  local till = number(BREAKER, 'until')
  if not till then return nil end
  if till > now then return till - now, 'breaker' end
  -- Half-open: one holder in the whole fleet finds out how the provider is.
  local probe = redis.call('HGET', BREAKER, 'probe')
  local probe_until = number(BREAKER, 'probe_until') or 0
  if probe and probe ~= holder and probe_until > now then return math.min(probe_until - now, 250), 'probe' end
  return nil, nil, true
end

local function grant(holder, ttl, probing)
  for _, s in ipairs(SCOPES) do redis.call('ZADD', s.slots, now + ttl, holder) end
  if probing then redis.call('HSET', BREAKER, 'probe', holder, 'probe_until', now + ttl) end
end

-- ms until the stamps leave room for cost and tokens, or nil if they do now: reservations, one's own too, aside.
local function early(cost, tokens)
  local longest
  for _, s in ipairs(SCOPES) do
    for i = 1, WINDOWS do
      local limit, total, ms, unit, key = window(s, i)
      if limit then
        local amount = math.min(unit == 'tokens' and tokens or cost, limit)
        if total > 0 and total + amount > limit then
          longest = math.max(longest or 0, until_free(key, ms, total + amount - limit))
        end
      end
    end
  end
  return longest
end

-- Whether all slots of a scope are taken by others.
local function crowded(holder)
  for _, s in ipairs(SCOPES) do
    redis.call('ZREMRANGEBYSCORE', s.slots, '-inf', now)
    local slots = number(s.hash, 'concurrency')
    if slots and not redis.call('ZSCORE', s.slots, holder) and redis.call('ZCARD', s.slots) >= slots then return true end
  end
  return false
end

-- What leaves a window of `ms` within the next `ahead` ms.
local function leaving(key, ms, ahead)
  local edge, sum = now - ms - math.max(10, ms * 0.01), 0
  local members = redis.call('ZRANGEBYSCORE', key, '-inf', edge + ahead, 'LIMIT', 0, 100)
  for _, member in ipairs(members) do sum = sum + string.match(member, ':(-?%d+)$') end
  return sum
end

-- ms to wait for room for cost and tokens in all windows, or nil if there is room, at the latest in `ahead` ms.
local function full(cost, tokens, ahead)
  local longest
  for _, s in ipairs(SCOPES) do
    local cost_r, tokens_r = reservations(s)
    for i = 1, WINDOWS do
      local limit, total, ms, unit, key = window(s, i)
      if limit then
        local amount, held = cost, cost_r
        if unit == 'tokens' then amount, held = tokens, tokens_r end
        -- What is larger than the window itself has the window to itself.
        amount = math.min(amount, limit)
        local over = total + held + amount - limit
        if over > 0 and (ahead == 0 or over > leaving(key, ms, ahead)) then
          -- Reservations become stamps or are released soon; stamps leave when their time is over.
          local wait = total + amount > limit and until_free(key, ms, total + amount - limit) - ahead or 20
          longest = math.max(longest or 1, wait)
        end
      end
    end
  end
  return longest
end
