-- A node is not connected any more.
-- KEYS[1]  presence of the node: "last seen, ms; digest of its snapshot; instance"
-- ARGV[1]  the instance that it was connected to; empty: any. If it is another's by now, it stays.
-- Returns 1 if it was present.
local present = redis.call('GET', KEYS[1])
if not present then return 0 end
if ARGV[1] ~= '' and string.match(present, '^%S+ %S+ (.*)$') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
