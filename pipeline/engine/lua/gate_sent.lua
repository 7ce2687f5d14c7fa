-- The request was sent: move its stamps to now. They were of the moment before it was sent, which is too early for
-- windows that the provider counts from when it has a request. (KEYS: gate_lib.lua)
-- ARGV[1]  number of the stamps   ARGV[2]  cost in requests   ARGV[3]  tokens
for _, s in ipairs(SCOPES) do
  for i = 1, WINDOWS do
    local limit, _, _, unit, key = window(s, i)
    if limit then redis.call('ZADD', key, 'XX', now, ARGV[1] .. ':' .. (unit == 'tokens' and ARGV[3] or ARGV[2])) end
  end
end
return 1
