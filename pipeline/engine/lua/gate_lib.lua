-- The prefix of the gate's scripts. A gate has two scopes, and both must admit a message: its
-- queue's, and its provider's, which all queues of the provider share.
-- KEYS[1]       hash: limits and pauses of the queue, totals of its windows
-- KEYS[2]       sorted set: slots taken; member = holder, score = expiry, ms
-- KEYS[3]       hash: reservations; holder -> "expiry:cost:tokens:n"; n is 0, or the number of the call's stamps once it
--               may be sent. Such a call counts as used, but its stamps have no time until it was sent, so that they do
--               not leave a window before the provider has the request.
-- KEYS[4…7]     sorted sets: stamps of windows 1 to 4; member = "n:amount", score = time, ms
-- KEYS[8]       sorted set: the line of waiters; member = "list of tokens, blank, queue", score = last request, ms
-- KEYS[9…16]    the same eight keys of the provider
-- KEYS[17]      hash: breaker of the provider's capability (until, reason, probe, probe_until)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local WINDOWS, BREAKER = 4, KEYS[17]
-- A waiter that has not asked for longer is dead or busy: waiting workers ask once a second.
local PATIENCE_MS, TOKEN_MS = 1500, 2000

-- Read a whole hash at once: each command in a script costs as much as outside.
local function fields(key)
  local all, values = redis.call('HGETALL', key), {}
  for i = 1, #all, 2 do values[all[i]] = all[i + 1] end
  return values
end
local function scope(first)
  return {
    hash = KEYS[first], slots = KEYS[first + 1], reserved = KEYS[first + 2], windows = first + 2, line = KEYS[first + 7],
    fields = fields(KEYS[first]),
  }
end
local QUEUE, PROVIDER = scope(1), scope(9)
local SCOPES = {QUEUE, PROVIDER}

local function number(s, field) return tonumber(s.fields[field] or '') end
local function set_total(s, i, total)
  s.fields['total' .. i] = tostring(total)
  redis.call('HSET', s.hash, 'total' .. i, total)
end

-- Drop old stamps of window i; return its limit, stamped total, length in ms, unit and key, or nil without the window.
local function stamped(s, i)
  local limit = number(s, 'limit' .. i)
  if not limit then return nil end
  local ms, key = number(s, 'ms' .. i), KEYS[s.windows + i]
  -- Requests take varying times to the provider: make the window a little longer than its own.
  local edge = now - ms - math.max(10, ms * 0.01)
  local total = number(s, 'total' .. i) or 0
  while total ~= 0 do
    local old = redis.call('ZRANGEBYSCORE', key, '-inf', edge, 'LIMIT', 0, 1000)
    if #old == 0 then break end
    for _, member in ipairs(old) do total = total - string.match(member, ':(-?%d+)$') end
    redis.call('ZREMRANGEBYRANK', key, 0, #old - 1)
    set_total(s, i, total)
  end
  if total ~= 0 and redis.call('ZCARD', key) == 0 then
    total = 0
    set_total(s, i, 0)
  end
  return limit, total, ms, s.fields['unit' .. i], key
end

-- Add amounts to the scope's windows at the time `at`, unless they have them. `amount_of`: the amount by unit, or nil.
local function add(s, n, amount_of, at)
  for i = 1, WINDOWS do
    local limit, total, ms, unit, key = stamped(s, i)
    local amount = limit and at > now - ms and amount_of[unit]
    if amount and redis.call('ZADD', key, 'NX', at, n .. ':' .. amount) == 1 then
      redis.call('PEXPIRE', key, math.ceil(ms * 1.1) + 1000)
      set_total(s, i, total + amount)
    end
  end
end

local function reservation(s, holder)
  local held = redis.call('HGET', s.reserved, holder)
  if held then return string.match(held, '^(%d+):(%d+):(%d+):(%d+)$') end
end

-- Stamp the holder's call, if it may have been sent, with the time `at`, the latest possible.
local function stamp_call(s, holder, at)
  local _, cost, tokens, n = reservation(s, holder)
  if n and n ~= '0' then
    redis.call('HDEL', s.reserved, holder)
    add(s, n, {requests = cost, tokens = tokens}, at)
  end
end

-- Add a call of the time `at` to the scope's windows, unless they have it: Redis may have been emptied since it
-- was stamped. Until a worker has restored the windows, keep it as an expired reservation.
local function put_back(s, n, cost, tokens, at)
  if s.fields.ready then return add(s, n, {requests = cost, tokens = tokens}, at) end
  redis.call('HSET', s.reserved, 'made ' .. n, string.format('%.0f:%s:%.0f:%s', at, cost, tokens, n))
end

-- Change the time when the stamps of a call leave its windows. `how`: INCR (by `ms`) or GT (not before `ms`).
local function move(s, n, cost, tokens, how, ms)
  for i = 1, WINDOWS do
    local amount = s.fields['unit' .. i] == 'tokens' and tokens or cost
    redis.call('ZADD', KEYS[s.windows + i], 'XX', how, ms, n .. ':' .. amount)
  end
end

-- Sum a scope's reservations, and its calls that are not sent yet, by unit. Drop expired reservations. An expired call
-- may have been sent at an unknown time: stamp it at the time of its expiry, the latest possible.
local function held(s)
  if s.held then return s.held end
  local sums, over = {waiting = {requests = 0, tokens = 0}, called = {requests = 0, tokens = 0}}, {}
  local all = redis.call('HGETALL', s.reserved)
  for i = 1, #all, 2 do
    local expiry, cost, tokens, n = string.match(all[i + 1], '^(%d+):(%d+):(%d+):(%d+)$')
    if tonumber(expiry) > now then
      local sum = n == '0' and sums.waiting or sums.called
      sum.requests, sum.tokens = sum.requests + cost, sum.tokens + tokens
    elseif s.fields.ready then
      redis.call('HDEL', s.reserved, all[i])
      if n ~= '0' then over[#over + 1] = {n, {requests = cost, tokens = tokens}, tonumber(expiry)} end
    end
  end
  s.held = sums
  for _, call in ipairs(over) do add(s, unpack(call)) end
  return sums
end

-- Like `stamped`; the total includes the calls that are not sent yet.
local function window(s, i)
  local sums = held(s)
  local limit, total, ms, unit, key = stamped(s, i)
  return limit, limit and total + sums.called[unit], ms, unit, key
end

-- ms until `amount` leaves a window of `ms`, at least 1; an amount that is not in it counts as stamped now.
local function until_free(key, ms, amount)
  local freed, start, edge = 0, 0, ms + math.max(10, ms * 0.01)
  while true do
    local members = redis.call('ZRANGE', key, start, start + 99, 'WITHSCORES')
    if #members == 0 then return math.ceil(edge) end
    for m = 1, #members, 2 do
      freed = freed + string.match(members[m], ':(-?%d+)$')
      if freed >= amount then return math.max(1, math.ceil(members[m + 1] + edge - now) + 1) end
    end
    start = start + 100
  end
end

-- If the gate is closed for `holder` (unready, or by an operator, a spend cap or a breaker): ms to wait, reason and
-- scope; else nil. Fourth: whether the holder would be the breaker's probe.
local function closed(holder)
  for _, s in ipairs(SCOPES) do
    -- Redis was emptied: until a worker has restored limits and pauses, the gate stays closed.
    if not s.fields.ready then return 1000, 'unready', s end
    for _, why in ipairs({'operator', 'spend'}) do
      local till = number(s, why .. '_until')
      if till and (till < 0 or till > now) then return till < 0 and 60000 or till - now, why, s end
    end
  end
  local breaker = redis.call('HMGET', BREAKER, 'until', 'probe', 'probe_until')
  local till = tonumber(breaker[1] or '')
  if not till then return nil end
  if till > now then return till - now, 'breaker', PROVIDER end
  -- Half-open: one holder in the whole fleet probes the provider.
  local probe, probe_until = breaker[2], tonumber(breaker[3] or '0')
  if probe and probe ~= holder and probe_until > now then return probe_until - now, 'probe', PROVIDER end
  return nil, nil, nil, true
end

local function grant(holder, ttl, probing)
  for _, s in ipairs(SCOPES) do redis.call('ZADD', s.slots, now + ttl, holder) end
  if probing then redis.call('HSET', BREAKER, 'probe', holder, 'probe_until', now + ttl) end
end

-- ms until the stamps leave room for cost and tokens, or nil if they do now. Ignores reservations.
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

-- If other holders have all slots of a scope: ms until the first of them expires, and the scope; else nil.
local function crowded(holder)
  for _, s in ipairs(SCOPES) do
    local slots = number(s, 'concurrency')
    if slots then
      redis.call('ZREMRANGEBYSCORE', s.slots, '-inf', now)
      if redis.call('ZCARD', s.slots) >= slots and not redis.call('ZSCORE', s.slots, holder) then
        return math.max(1, redis.call('ZRANGE', s.slots, 0, 0, 'WITHSCORES')[2] - now), s
      end
    end
  end
end

-- The number of waiters in the scope's line before `waiter`.
local function place(s, waiter)
  redis.call('ZREMRANGEBYSCORE', s.line, '-inf', now - PATIENCE_MS)
  return redis.call('ZRANK', s.line, waiter) or redis.call('ZCARD', s.line)
end

-- Wake the first waiter in the scope's line, by a token (a message) in the list that it reads.
local function wake(s)
  redis.call('ZREMRANGEBYSCORE', s.line, '-inf', now - PATIENCE_MS)
  local waiter = redis.call('ZPOPMIN', s.line)[1]
  if not waiter then return end
  local list, queue = string.match(waiter, '^(%S+) (.+)$')
  redis.call('RPUSH', list, '{"properties": {"delivery_tag": "' .. queue .. '"}}')
  redis.call('PEXPIRE', list, TOKEN_MS)
end

-- Give back a holder's slot and reservation; wake a waiter if that makes room.
local function give_back(holder)
  for _, s in ipairs(SCOPES) do
    local reserved, slot = redis.call('HDEL', s.reserved, holder), redis.call('ZREM', s.slots, holder)
    if reserved > 0 or (slot > 0 and s.fields.concurrency) then wake(s) end
  end
end

-- The amount that leaves a window of `ms` within the next `ahead` ms.
local function leaving(key, ms, ahead)
  local edge, sum = now - ms - math.max(10, ms * 0.01), 0
  local members = redis.call('ZRANGEBYSCORE', key, '-inf', edge + ahead, 'LIMIT', 0, 100)
  for _, member in ipairs(members) do sum = sum + string.match(member, ':(-?%d+)$') end
  return sum
end

-- ms to wait for room for cost and tokens in all windows, or nil if they have room within `ahead` ms; second,
-- the scope of the longest wait. Waiters before `waiter` in a scope's line take their room first.
local function full(cost, tokens, ahead, waiter)
  local longest, of
  for _, s in ipairs(SCOPES) do
    local before = nil
    for i = 1, WINDOWS do
      local limit, total, ms, unit, key = window(s, i)
      if limit then
        -- An amount larger than the window waits until the window is empty.
        local amount = math.min(unit == 'tokens' and tokens or cost, limit)
        local over = total + held(s).waiting[unit] + amount - limit
        if over > 0 and (ahead == 0 or over > leaving(key, ms, ahead)) then
          before = before or (waiter and place(s, waiter)) or 0
          -- Reservations become stamps. If one is released instead, that wakes a waiter.
          local wait = math.max(1, until_free(key, ms, over + before * amount) - ahead)
          if wait > (longest or 0) then longest, of = wait, s end
        end
      end
    end
  end
  return longest, of
end
