-- Stamp a call whose request was handed over. An earlier stamp would be too early for windows that the provider
-- counts from the arrival of the request. (KEYS: gate_lib.lua)
-- ARGV[1]  holder
-- ARGV[2]  number of the call's stamps, or 0   ARGV[3]  its cost in requests   ARGV[4]  its tokens. If Redis was emptied
-- since the call was stamped, it counts now, and not only when it ends.
for _, s in ipairs(SCOPES) do
  stamp_call(s, ARGV[1], now)
  if ARGV[2] ~= '0' then
    put_back(s, ARGV[2], ARGV[3], ARGV[4], now)
    -- Its message may have been redelivered, and another admission of that holder may have stamped it too early.
    move(s, ARGV[2], ARGV[3], ARGV[4], 'GT', now)
  end
end
return 1
