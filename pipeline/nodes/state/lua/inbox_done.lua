-- Delete handled entries of an inbox, from the group and from the stream.
-- KEYS[1]  stream
-- ARGV[1]  group   ARGV[2…]  entries
redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, 2))
redis.call('XDEL', KEYS[1], unpack(ARGV, 2))
return 1
