-- numbers: what all algorithms count with, and how it is written down.
--
-- All numbers are integers below 2^53, where a double is exact; sums are written
-- as differences where the sum could pass that bound. So is x % y exact: it is
-- x - floor(x / y) * y, and a quotient that is no integer is at least 1/y away
-- from one, which for x < 2^53 is more than the rounding of a double can bridge.
-- What is left, x - x % y, is a multiple of y, and dividing it is exact again.
--
-- Values are stored as such doubles, 8 bytes each, least byte first; so are the
-- numbers in ARGV[1] sent. To write and read decimal digits would cost more than
-- all of the arithmetic. To look at one:
--   redis-cli eval "return {struct.unpack('<dd', redis.call('get', KEYS[1]))}" 1 KEY
local exact = 2 ^ 53

-- year is 366 days in µs, the longest window there is. A stored time that is
-- further ahead of this clock than that, however it was set meanwhile, is none of
-- ours.
local year = 366 * 86400 * 1000000

local pack, parse = struct.pack, struct.unpack

-- algorithms, by the number that a charge names them with. The files that follow
-- fill it; a script holds those that its calls need.
local algorithms = {}

-- ceil_div returns x / y, rounded up, for y > 0.
local function ceil_div(x, y)
	local rest = x % y
	if rest == 0 then return x / y end
	return (x - rest) / y + 1
end

-- mul_div returns part * factor / whole, rounded down, and whether something was
-- cut, for 0 <= part < whole. The product may have 106 bits: where it is not
-- exact it is formed bit by bit, and no value there passes 2 * whole + part.
local function mul_div(part, factor, whole)
	local product = part * factor
	if product < exact then
		local rest = product % whole
		return (product - rest) / whole, rest > 0
	end
	local bit = 1
	while bit * 2 <= factor do bit = bit * 2 end
	local quotient, rest = 0, 0
	while bit >= 1 do
		quotient, rest = quotient * 2, rest * 2
		if rest >= whole then quotient, rest = quotient + 1, rest - whole end
		if factor >= bit then
			factor = factor - bit
			rest = rest + part
			if rest >= whole then quotient, rest = quotient + 1, rest - whole end
		end
		bit = bit / 2
	end
	return quotient, rest > 0
end

-- rescale converts spent from 1/scale units to 1/den units. Whole units stay
-- whole; a part of one is rounded against the caller. What is above enough is
-- above it then too, but perhaps not exact.
local function rescale(spent, scale, den, enough)
	if scale == den then return spent end
	local part = spent % scale
	spent = (spent - part) / scale * den
	if spent > enough then return spent end
	local scaled, cut = mul_div(part, den, scale)
	if cut then scaled = scaled + 1 end
	return spent + scaled
end

-- above tells whether x/den is more than y/scale, however fine they are.
local function above(x, den, y, scale)
	local part, rest = x % den, y % scale
	local whole, other = (x - part) / den, (y - rest) / scale
	if whole ~= other then return whole > other end
	local scaled, cut = mul_div(part, scale, den)
	return scaled > rest or scaled == rest and cut
end
