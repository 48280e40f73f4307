-- prelude (tests): the clock is the caller's, in ARGV[2], µs since the epoch.
-- Since that clock may stand still while the server's goes on, keys live an hour
-- longer than they would.
local pcall = redis.pcall

local now = tonumber(ARGV[2])

local function keep(key, value, ms)
	return pcall('SET', key, value, 'PX', ms + 3600000).err
end

local function rewrite(key, value)
	return pcall('SET', key, value, 'KEEPTTL').err
end

local function last(key, ms)
	return pcall('PEXPIRE', key, ms + 3600000)
end
