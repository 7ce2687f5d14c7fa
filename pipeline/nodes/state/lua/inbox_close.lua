-- Remove a dead instance's inbox if it is empty.
-- KEYS[1]  stream   KEYS[2]  lease of the instance that drains it
-- Returns 1 if the inbox does not exist now.
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('XLEN', KEYS[1]) > 0 then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
return 1
