-- Set the limits and pauses of a scope, unless it has newer ones. Recorded usage stays: a window takes over the
-- stamps of the longest one that counted the same unit. The caller passes usage that no window has, from its records.
-- KEYS     the eight of the scope, see gate_lib.lua
-- ARGV[1]  version of the configuration; 0: apply it regardless of the current version
-- ARGV[2]  JSON object: fields of the scope's hash; "" removes one
-- ARGV[3]  JSON array of windows {limit, ms, unit}; "": windows stay as they are
-- ARGV[4]  JSON object: by unit, an array of {age in ms, amount} of the calls on record; "": not read yet
-- Returns {1, 0} if applied, {0, 0} if the scope has a newer version, or {2, ms}, having done nothing: read the calls
-- on record of the last ms.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local version, hash = tonumber(ARGV[1]), KEYS[1]
local held, all = {}, redis.call('HGETALL', hash)
for i = 1, #all, 2 do held[all[i]] = all[i + 1] end
if version > 0 and tonumber(held.version or '0') > version then return {0, 0} end

local windows = ARGV[3] ~= '' and cjson.decode(ARGV[3])
local changed = false
for i = 1, 4 do
  local w = windows and windows[i]
  if windows and (held['unit' .. i] ~= (w and w.unit) or tonumber(held['ms' .. i] or '') ~= (w and w.ms)) then changed = true end
end

if changed then
  -- How far back an old window of the same unit covers each new window.
  local lacking = 0
  for _, w in ipairs(windows) do
    w.covered = 0
    for i = 1, 4 do
      local ms = tonumber(held['ms' .. i] or '')
      if held['unit' .. i] == w.unit and ms > w.covered then w.covered, w.source = ms, KEYS[3 + i] end
    end
    if w.covered < w.ms then lacking = math.max(lacking, w.ms) end
  end
  if lacking > 0 and ARGV[4] == '' then return {2, lacking} end
  local recorded = ARGV[4] == '' and {} or cjson.decode(ARGV[4])
  for _, w in ipairs(windows) do w.stamps = w.source and redis.call('ZRANGE', w.source, 0, -1, 'WITHSCORES') or {} end
  for i = 1, 4 do
    redis.call('DEL', KEYS[3 + i])
    redis.call('HDEL', hash, 'limit' .. i, 'ms' .. i, 'unit' .. i, 'total' .. i)
  end
  for i, w in ipairs(windows) do
    local key, total, edge = KEYS[3 + i], 0, w.ms + math.max(10, w.ms * 0.01)
    local function put(member, amount, at)
      redis.call('ZADD', key, at, member)
      total = total + amount
    end
    for s = 1, #w.stamps, 2 do
      local at = tonumber(w.stamps[s + 1])
      if at > now - edge then put(w.stamps[s], string.match(w.stamps[s], ':(-?%d+)$'), at) end
    end
    for r, call in ipairs(recorded[w.unit] or {}) do
      local age, amount = call[1], call[2]
      if age >= w.covered and age < edge then put(string.format('r%.0f-%d:%.0f', now, r, amount), amount, now - age) end
    end
    redis.call('PEXPIRE', key, math.ceil(w.ms * 1.1) + 1000)
    redis.call('HSET', hash, 'total' .. i, string.format('%.0f', total))
  end
end
for i, w in ipairs(windows or {}) do
  redis.call('HSET', hash, 'limit' .. i, string.format('%.0f', w.limit), 'ms' .. i, string.format('%.0f', w.ms), 'unit' .. i, w.unit)
end
for field, value in pairs(cjson.decode(ARGV[2])) do
  if value == '' then redis.call('HDEL', hash, field) else redis.call('HSET', hash, field, value) end
end
-- Stamps never reuse a number, also after Redis was emptied: calls under way restore their stamps.
redis.call('HSETNX', hash, 'n', string.format('%.0f', now))
redis.call('HSET', hash, 'ready', 1)
if version > 0 then redis.call('HSET', hash, 'version', ARGV[1]) end
return {1, 0}
