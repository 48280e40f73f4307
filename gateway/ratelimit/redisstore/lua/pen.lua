-- pen: how values are written.
--
-- keep     writes a value together with its expiry, in one command, so that no
--          key of ours can be left without one. ms: milliseconds, > 0. It
--          returns nil, or why the server refuses to.
-- rewrite  writes another value under a key that keeps the expiry it has.
-- last     gives its expiry to a key that was not written by keep.
local function keep(key, value, ms)
	return pcall('SET', key, value, 'PX', ms + grace).err
end

local function rewrite(key, value)
	return pcall('SET', key, value, 'KEEPTTL').err
end

local function last(key, ms)
	return pcall('PEXPIRE', key, ms + grace)
end
