-- KEYS[1]  any key: it says which server is asked
-- Returns the server's time, ms.
return now
