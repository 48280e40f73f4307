-- leaky_bucket: a queue that drips. Its books are those of token_bucket: spent is
-- the backlog, what was admitted and has not dripped yet.
--
-- stored   as token_bucket
-- policy   capacity: the places of the queue and the one that goes at once, in
--          1/den units, < 2^53; less where a place would wait for longer than is
--          allowed, and then perhaps no multiple of den; 0 for a quota of 0
--          num, den: as token_bucket
-- amount   the backlog, in 1/den units
-- receipt  0, 0: a drip is not given back. Those behind it would have to be told
--          that they may go earlier.
-- expiry   as token_bucket
local leaky_bucket = {wait = token_bucket.wait, save = token_bucket.save}
algorithms[6] = leaky_bucket

function leaky_bucket.open(key, capacity, num, den)
	local charge, foreign = token_bucket.open(key, capacity, num, den)
	if charge then charge.algorithm = leaky_bucket end
	return charge, foreign
end

-- delay returns the µs until the last drip of what was charged last. The first
-- one of an empty bucket takes no time.
function leaky_bucket.delay(charge)
	local us = 0
	if charge.after > charge.den then us = ceil_div(charge.after - charge.den, charge.num) end
	if charge.at > now then us = us + (charge.at - now) end
	return us
end

function leaky_bucket.receipt()
	return 0, 0
end
