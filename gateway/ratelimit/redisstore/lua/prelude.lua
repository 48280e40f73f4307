-- prelude: the clock and the pen. It stands in front of the other files; the
-- four are joined into one script when the program starts.
--
-- now   µs since the epoch on this server's clock. No caller's clock decides
--       anything.
-- keep  writes a value together with its expiry, in one command, so that no
--       key of ours can be left without one. ms: milliseconds, > 0. It returns
--       the server's reply, which is a table with a field err when refused.
--
-- Microseconds, not nanoseconds: a number here is a double, exact up to 2^53
-- only, and nanoseconds since the epoch passed that in 1970. TIME answers in
-- two strings; the arithmetic makes numbers of them.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

local function keep(key, value, ms)
	return redis.pcall('SET', key, value, 'PX', ms)
end
