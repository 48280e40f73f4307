-- leaky_bucket: a queue that drips. Its books are those of token_bucket: spent is
-- the backlog, what was admitted and has not dripped yet.
--
-- stored   as token_bucket
-- policy   capacity: the places of the queue and the one that goes at once, in
--          1/den units, < 2^53; less where a place would wait for longer than is
--          allowed, and then perhaps no multiple of den; 0 for a quota of 0
--          num, den: as token_bucket
--          longest: µs that nobody may wait longer than; 0: as long as it takes
-- amount   the backlog, in 1/den units
-- receipt  0, 0: a drip is not given back. Those behind it would have to be told
--          that they may go earlier.
-- expiry   as token_bucket
local leaky_bucket = {save = token_bucket.save}
algorithms[6] = leaky_bucket

function leaky_bucket.open(key, capacity, num, den, longest)
	local charge, foreign = token_bucket.open(key, capacity, num, den)
	if not charge then return nil, foreign end
	charge.algorithm = leaky_bucket
	if longest > 0 and charge.at > now then
		-- The clock is behind, and everybody waits until it has caught up: fewer
		-- fit for now. Beyond 2^53 the product is not exact, but the capacity less.
		local left, most = longest - (charge.at - now), 0
		if left >= 0 then most = math.min(capacity, left * num + den) end
		charge.quota, charge.most, charge.longest = capacity, most, longest
	end
	return charge
end

-- delay returns the µs until the last drip of what was charged last, or of so much
-- as amount. The first one of an empty bucket takes no time.
function leaky_bucket.delay(charge, amount)
	local us = 0
	amount = amount or charge.after
	if amount > charge.den then us = ceil_div(amount - charge.den, charge.num) end
	if charge.at > now then us = us + (charge.at - now) end
	return us
end

-- wait is until enough has dripped or, if there is a place, until it would not be
-- too long any more to wait for it.
function leaky_bucket.wait(charge, spent, cost)
	local parts = cost * charge.den
	if charge.quota and parts <= charge.quota - spent then
		return leaky_bucket.delay(charge, spent + parts) - charge.longest
	end
	return token_bucket.wait(charge, spent, cost)
end

function leaky_bucket.receipt()
	return 0, 0
end
