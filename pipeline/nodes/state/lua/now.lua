-- KEYS[1]  any key; it chooses the server
-- Returns the server's time, ms.
return now
