-- prelude: the clock and the pen. It stands in front of the other files, which
-- are joined into one script when the program starts.
--
-- now      µs since the epoch on this server's clock. No caller's clock decides
--          anything.
-- keep     writes a value together with its expiry, in one command, so that no
--          key of ours can be left without one. ms: milliseconds, > 0. It
--          returns nil, or why the server refuses to.
-- rewrite  writes another value under a key that keeps the expiry it has.
-- last     gives its expiry to a key that was not written by keep.
--
-- Microseconds, not nanoseconds: a number here is a double, exact up to 2^53
-- only, and nanoseconds since the epoch passed that in 1970. TIME answers in
-- two strings; the arithmetic makes numbers of them.
local pcall = redis.pcall

local clock = pcall('TIME')
local now = clock[1] * 1000000 + clock[2]

local function keep(key, value, ms)
	return pcall('SET', key, value, 'PX', ms).err
end

local function rewrite(key, value)
	return pcall('SET', key, value, 'KEEPTTL').err
end

local function last(key, ms)
	return pcall('PEXPIRE', key, ms)
end
