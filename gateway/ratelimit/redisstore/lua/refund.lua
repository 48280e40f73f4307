-- refund: give back what a request was charged that was not admitted after all,
-- as far as it still weighs.
--
-- KEYS[i]  the bucket of refund i, from 1
-- ARGV[1]  numbers, as numbers.lua says; for each refund seven:
--            algorithm  as in take
--            cost       units that were charged, >= 1
--            receipt    two numbers that take replied
--            num, den   token_bucket: num/den units come back every µs
--            window     sliding_window_counter: µs
--
-- reply    for each refund 1 or 0: whether anything was given back
-- error    the server's own, if it refused to write one of them
-- expiry   stays as it is; a bucket of which nothing is spent any more goes
--
-- Nothing here knows what others have charged since, so each is given back no
-- more than would be missing of what is spent now if it had never been charged.
-- A bucket that is gone, ended, begun anew, or counted in another scale by a
-- plan that has changed since, gets nothing. So a refund can cost its caller
-- quota; it never lets anybody have more than the limit.
local refunds = {}

-- write stores what is left, or nothing where that says no more than nothing:
-- where none of it weighs any more.
local refused -- the first error of the server
local function write(key, value, weighs)
	local written
	if weighs > 0 then
		written = rewrite(key, value)
	else
		written = pcall('DEL', key)
	end
	if type(written) == 'table' and written.err then refused = refused or written end
end

-- token_bucket: first in, first out: what has drained since was this charge, and
-- that of those before it. A former (see token_bucket.lua) was charged too, and
-- had spent no less; it may count in another scale, in which what was spent then
-- is rounded down, so that no more goes back than is missing.
refunds[1] = function(key, cost, spent_then, at_then, num, den)
	local stored = pcall('GET', key)
	if not stored or #stored ~= 40 and #stored ~= 88 then return 0 end
	local spent, scale, rate, at, lives = parse('<ddddd', stored)
	local since, passed = math.max(0, now - at_then), math.max(0, now - at)
	local back, weighs, behind = 0, 0, ''
	if scale == den then
		back = cost * den
		if since > 0 then back = math.max(0, math.min(back, spent_then - since * num)) end
		spent = math.max(0, spent - back)
	end
	if #stored > 40 then
		local before, fden, fnum, most, under, of = parse('<dddddd', stored, 41)
		local part = spent_then % den
		local then_spent = (spent_then - part) / den * fden + mul_div(part, fden, den)
		local more = cost * fden
		if since > 0 then more = math.max(0, math.min(more, then_spent - since * fnum)) end
		before, back = math.max(0, before - more), back + more
		weighs = before - passed * fnum
		if weighs > 0 then behind = pack('<dddddd', before, fden, fnum, most, under, of) end
	end
	if back <= 0 then return 0 end
	write(key, pack('<ddddd', spent, scale, rate, at, lives) .. behind, math.max(weighs, spent - passed * rate))
	return 1
end

refunds[2] = function(key, cost, ends_then)
	local stored = pcall('GET', key)
	if not stored or #stored ~= 16 then return 0 end
	local used, ends = parse('<dd', stored)
	if ends ~= ends_then or now >= ends then return 0 end
	used = math.max(0, used - cost)
	write(key, pack('<dd', used, ends), used)
	return 1
end
refunds[3] = refunds[2]

-- sliding_window_log: units of one time are all the same.
refunds[4] = function(key, cost, at_then)
	local removed = pcall('LREM', key, -cost, string.format('%.0f', at_then))
	if removed == cost then return 1 end
	return 0
end

-- sliding_window_counter: in the window that was charged, or as part of the
-- previous one.
refunds[5] = function(key, cost, begins_then, _, _, _, window)
	local stored = pcall('GET', key)
	if not stored or #stored ~= 24 then return 0 end
	local used, previous, begins = parse('<ddd', stored)
	if begins == begins_then then
		used = math.max(0, used - cost)
	elseif begins == begins_then + window then
		previous = math.max(0, previous - cost)
	else
		return 0
	end
	write(key, pack('<ddd', used, previous, begins), used + previous)
	return 1
end

local reply = {}
for i = 1, #KEYS do
	local number, cost, x, y, num, den, window = parse('<ddddddd', ARGV[1], 56 * i - 55)
	reply[i] = refunds[number](KEYS[i], cost, x, y, num, den, window)
end
if refused then return refused end
return reply
