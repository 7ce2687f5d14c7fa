-- Shared by the gate's scripts; put before each of them. A gate has two scopes, and both must admit a message: its
-- queue's, and its provider's, which all queues of the provider share.
-- KEYS[1]       hash: limits and pauses of the queue, totals of its windows
-- KEYS[2]       sorted set: slots taken; member = holder, score = expiry, ms
-- KEYS[3]       hash: reservations; holder -> "expiry:cost:tokens:n"; n is 0, or the number of the call's stamps once it
--               may be sent. Such a call is used already, but its stamps have no time until it was sent, so that they do
--               not leave a window before the provider has the request.
-- KEYS[4…7]     sorted sets: stamps of windows 1 to 4; member = "n:amount", score = time, ms
-- KEYS[8]       sorted set: who waits because of this scope; member = "list of tokens, blank, queue", score = asked, ms
-- KEYS[9…16]    the same eight of the provider
-- KEYS[17]      hash: breaker of the provider's capability (until, reason, probe, probe_until)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local WINDOWS, BREAKER = 4, KEYS[17]
-- Who has not asked for longer has died, or does something else: waiting workers ask once a second.
local PATIENCE_MS, TOKEN_MS = 1500, 2000

-- A whole hash at once: commands that a script runs cost as much as others.
local function fields(key)
  local all, found = redis.call('HGETALL', key), {}
  for i = 1, #all, 2 do found[all[i]] = all[i + 1] end
  return found
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

-- Limit, stamped total, length in ms, unit and key of window i, once what left it is dropped; nil without such a window.
local function stamped(s, i)
  local limit = number(s, 'limit' .. i)
  if not limit then return nil end
  local ms, key = number(s, 'ms' .. i), KEYS[s.windows + i]
  -- The way to the provider varies: the window is a little longer here than there.
  local edge = now - ms - math.max(10, ms * 0.01)
  local total = number(s, 'total' .. i) or 0
  while total ~= 0 do
    local gone = redis.call('ZRANGEBYSCORE', key, '-inf', edge, 'LIMIT', 0, 1000)
    if #gone == 0 then break end
    for _, member in ipairs(gone) do total = total - string.match(member, ':(-?%d+)$') end
    redis.call('ZREMRANGEBYRANK', key, 0, #gone - 1)
    set_total(s, i, total)
  end
  if total ~= 0 and redis.call('ZCARD', key) == 0 then
    total = 0
    set_total(s, i, 0)
  end
  return limit, total, ms, s.fields['unit' .. i], key
end

-- Put amounts into the scope's windows, as of `at`, unless they are there. `amount_of`: the amount by unit, nil for none.
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

-- If the holder's call may have been sent: it was, at `at` or before.
local function stamp_call(s, holder, at)
  local _, cost, tokens, n = reservation(s, holder)
  if n and n ~= '0' then
    redis.call('HDEL', s.reserved, holder)
    add(s, n, {requests = cost, tokens = tokens}, at)
  end
end

-- Put a call that was made, at `at`, into the scope's windows, unless it is there: Redis may have been emptied since it
-- was stamped. Until somebody has put the windows back, it is kept as a call whose time is over.
local function put_back(s, n, cost, tokens, at)
  if s.fields.ready then return add(s, n, {requests = cost, tokens = tokens}, at) end
  redis.call('HSET', s.reserved, 'made ' .. n, string.format('%.0f:%s:%.0f:%s', at, cost, tokens, n))
end

-- Change when the stamps of a call leave its windows. `how`: INCR (by `ms`) or GT (not before `ms`).
local function move(s, n, cost, tokens, how, ms)
  for i = 1, WINDOWS do
    local amount = s.fields['unit' .. i] == 'tokens' and tokens or cost
    redis.call('ZADD', KEYS[s.windows + i], 'XX', how, ms, n .. ':' .. amount)
  end
end

-- What is reserved in a scope, and what is called but not sent yet, by unit. Who has reserved for too long has nothing
-- any more; of a call that may have been sent, nobody knows when: it is taken for sent at the last moment.
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

-- As `stamped`, the total with the calls that are not sent yet.
local function window(s, i)
  local sums = held(s)
  local limit, total, ms, unit, key = stamped(s, i)
  return limit, limit and total + sums.called[unit], ms, unit, key
end

-- ms until `amount` leaves a window of `ms`, at least 1; if it is not in it yet, as if it were stamped now.
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

-- Whether the gate is closed for `holder`: unready, or by an operator, a spend cap or a breaker: ms to wait, why and
-- the scope, or nil; fourth, whether the holder would be the breaker's probe.
local function closed(holder)
  for _, s in ipairs(SCOPES) do
    -- Redis was emptied: until somebody has put limits and pauses back, nobody knows what is allowed.
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
  -- Half-open: one holder in the whole fleet finds out how the provider is.
  local probe, probe_until = breaker[2], tonumber(breaker[3] or '0')
  if probe and probe ~= holder and probe_until > now then return probe_until - now, 'probe', PROVIDER end
  return nil, nil, nil, true
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

-- If all slots of a scope are taken by others: ms until the first of them expires, and the scope; or nil.
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

-- How many wait in the scope's line before `waiter`.
local function place(s, waiter)
  redis.call('ZREMRANGEBYSCORE', s.line, '-inf', now - PATIENCE_MS)
  return redis.call('ZRANK', s.line, waiter) or redis.call('ZCARD', s.line)
end

-- Wake the first who waits in the scope's line: by a token, which is a message, in the list that it reads.
local function wake(s)
  redis.call('ZREMRANGEBYSCORE', s.line, '-inf', now - PATIENCE_MS)
  local waiter = redis.call('ZPOPMIN', s.line)[1]
  if not waiter then return end
  local list, queue = string.match(waiter, '^(%S+) (.+)$')
  redis.call('RPUSH', list, '{"properties": {"delivery_tag": "' .. queue .. '"}}')
  redis.call('PEXPIRE', list, TOKEN_MS)
end

-- Give back what a holder has; room that this makes wakes one who waits.
local function give_back(holder)
  for _, s in ipairs(SCOPES) do
    local reserved, slot = redis.call('HDEL', s.reserved, holder), redis.call('ZREM', s.slots, holder)
    if reserved > 0 or (slot > 0 and s.fields.concurrency) then wake(s) end
  end
end

-- What leaves a window of `ms` within the next `ahead` ms.
local function leaving(key, ms, ahead)
  local edge, sum = now - ms - math.max(10, ms * 0.01), 0
  local members = redis.call('ZRANGEBYSCORE', key, '-inf', edge + ahead, 'LIMIT', 0, 100)
  for _, member in ipairs(members) do sum = sum + string.match(member, ':(-?%d+)$') end
  return sum
end

-- ms to wait for room for cost and tokens in all windows, or nil if there is room, at the latest in `ahead` ms; second,
-- the scope of the longest wait. `waiter`: who asks; those before it in a scope's line take their room first.
local function full(cost, tokens, ahead, waiter)
  local longest, of
  for _, s in ipairs(SCOPES) do
    local before = nil
    for i = 1, WINDOWS do
      local limit, total, ms, unit, key = window(s, i)
      if limit then
        -- What is larger than the window itself has the window to itself.
        local amount = math.min(unit == 'tokens' and tokens or cost, limit)
        local over = total + held(s).waiting[unit] + amount - limit
        if over > 0 and (ahead == 0 or over > leaving(key, ms, ahead)) then
          before = before or (waiter and place(s, waiter)) or 0
          -- Reservations become stamps. If one is released instead, that wakes who waits.
          local wait = math.max(1, until_free(key, ms, over + before * amount) - ahead)
          if wait > (longest or 0) then longest, of = wait, s end
        end
      end
    end
  end
  return longest, of
end
