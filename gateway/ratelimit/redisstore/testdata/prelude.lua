-- prelude (tests): the clock is the caller's, in the last ARGV, µs since the
-- epoch. Since that clock may stand still while the server's goes on, keys live
-- an hour longer than they would.
local now = tonumber(ARGV[#ARGV])

local function keep(key, value, ms)
	return redis.pcall('SET', key, value, 'PX', ms + 3600000)
end
