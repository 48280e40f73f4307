-- prelude: the clock. It stands in front of the other files, which are joined into
-- one script when the program starts.
--
-- now      µs since the epoch on this server's clock. No caller's clock decides
--          anything.
-- grace    ms that keys live for longer than they would have to: 0
--
-- Microseconds, not nanoseconds: a number here is a double, exact up to 2^53
-- only, and nanoseconds since the epoch passed that in 1970. TIME answers in
-- two strings; the arithmetic makes numbers of them.
local pcall = redis.pcall

local clock = pcall('TIME')
local now = clock[1] * 1000000 + clock[2]
local grace = 0
