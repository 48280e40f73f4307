-- token_bucket: what was spent, and how it drains.
--
-- stored   "spent:den:at", decimal integers. spent: units spent as of `at`,
--          counted in 1/den of a unit; at: µs since the epoch. Absent: nothing
--          is spent. What is held is what was spent, not what remains, so that
--          a raised burst helps at once.
-- policy   {quota, burst, num, den}: burst units, >= 1, refilled by num/den
--          units a µs (num/den is quota/window, reduced by the caller, who also
--          sees to it that burst * den < 2^53 and den <= 366 days). quota 0:
--          num 0, den 1, and nothing is ever admitted.
-- cost     units, >= 1.
-- expiry   when all is refilled, rounded up to the next ms.
--
-- All numbers are integers below 2^53, where a double is exact. Sums are
-- written as differences where the sum could pass that bound. math.floor(x / y)
-- is exact here as well: a quotient that is no integer is at least 1/y away from
-- one, which for x < 2^53 is more than the rounding of a double can bridge.
local token_bucket = {}

local exact = 2 ^ 53

-- ceil_div returns x / y, rounded up.
local function ceil_div(x, y)
	local q = math.floor(x / y)
	if q * y < x then q = q + 1 end
	return q
end

-- rescale returns ceil(part * new_den / den) for 0 <= part < den, by long
-- multiplication over the bits of new_den: the product itself may have 90 bits,
-- but no value here passes 2 * den + part.
local function rescale(part, den, new_den)
	local bit = 1
	while bit * 2 <= new_den do bit = bit * 2 end
	local quotient, rest = 0, 0
	while bit >= 1 do
		quotient, rest = quotient * 2, rest * 2
		if rest >= den then quotient, rest = quotient + 1, rest - den end
		if new_den >= bit then
			new_den = new_den - bit
			rest = rest + part
			if rest >= den then quotient, rest = quotient + 1, rest - den end
		end
		bit = bit / 2
	end
	if rest > 0 then quotient = quotient + 1 end
	return quotient
end

-- load makes a state {spent, den, at} of what is stored; nil for what we never
-- wrote.
function token_bucket.load(stored)
	if not stored then return {0, 1, 0} end
	local spent, den, at = string.match(stored, '^(%d+):(%d+):(%d+)$')
	spent, den, at = tonumber(spent), tonumber(den), tonumber(at)
	if not at or spent >= exact or at >= exact or den < 1 or den > exact / 2 then return nil end
	return {spent, den, at}
end

-- advance returns the state as it is now, in the units of this policy.
function token_bucket.advance(state, policy)
	local burst, num, den = policy[2], policy[3], policy[4]
	local spent, at = state[1], state[3]
	if state[2] ~= den then
		-- The plan was changed. Whole units stay whole; a part of one is rounded
		-- against the caller.
		local whole = math.floor(spent / state[2])
		if whole >= burst then
			spent = burst * den
		else
			spent = whole * den + rescale(spent - whole * state[2], state[2], den)
		end
	end
	if spent > burst * den then spent = burst * den end -- the plan was lowered
	if now > at then
		local passed = now - at
		if num > 0 then
			if passed >= ceil_div(spent, num) then
				spent = 0
			else
				spent = spent - passed * num
			end
		end
		at = now
	end
	-- A clock that stands still or steps back refills nothing, and `at` stays,
	-- so that the same span is not refilled twice.
	return {spent, den, at}
end

-- admits tells whether cost fits.
function token_bucket.admits(state, policy, cost)
	local quota, burst, den = policy[1], policy[2], policy[4]
	return quota > 0 and cost <= burst and cost * den <= burst * den - state[1]
end

-- charge returns the state after cost, which fits.
function token_bucket.charge(state, policy, cost)
	return {state[1] + cost * policy[4], state[2], state[3]}
end

-- lag is how far the clock is behind the state; refilling waits for it.
local function lag(state)
	if state[3] > now then return state[3] - now end
	return 0
end

-- describe returns remaining (units) and reset (µs until one more remains).
function token_bucket.describe(state, policy)
	local quota, burst, num, den = policy[1], policy[2], policy[3], policy[4]
	local spent = state[1]
	if quota == 0 then return 0, 0 end
	local remaining = math.floor((burst * den - spent) / den)
	if spent == 0 then return remaining, 0 end
	return remaining, lag(state) + ceil_div(spent - (burst - remaining - 1) * den, num)
end

-- retry_after returns the µs until cost, which does not fit now, would; -1 for
-- never.
function token_bucket.retry_after(state, policy, cost)
	local quota, burst, num, den = policy[1], policy[2], policy[3], policy[4]
	if quota == 0 or cost > burst then return -1 end
	return lag(state) + ceil_div(state[1] - (burst - cost) * den, num)
end

-- save returns the value to store and its expiry in ms, one more than it takes,
-- so that the key never ends before its state does.
function token_bucket.save(state, policy)
	return string.format('%.0f:%.0f:%.0f', state[1], state[2], state[3]),
		ceil_div(lag(state) + ceil_div(state[1], policy[3]), 1000) + 1
end
