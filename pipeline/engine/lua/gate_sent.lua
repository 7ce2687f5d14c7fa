-- The request was handed over: the call is stamped. The moment before would be too early for windows that the provider
-- counts from when it has the request. (KEYS: gate_lib.lua)
-- ARGV[1]  holder
for _, s in ipairs(SCOPES) do stamp_call(s, ARGV[1], now) end
return 1
