-- prelude (tests): the clock is the caller's, in ARGV[2], µs since the epoch.
-- Since that clock may stand still while the server's goes on, keys live an hour
-- longer than they would.
local pcall = redis.pcall

local now = tonumber(ARGV[2])
local grace = 3600000
