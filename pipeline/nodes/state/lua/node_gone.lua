-- End a node's presence.
-- KEYS[1]  presence of the node: "last seen, ms; digest of its snapshot; instance"
-- ARGV[1]  the instance that announced it; empty: any. Keep the presence if another instance announced it.
-- Returns 1 if the presence was deleted.
local present = redis.call('GET', KEYS[1])
if not present then return 0 end
if ARGV[1] ~= '' and string.match(present, '^%S+ %S+ (.*)$') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
