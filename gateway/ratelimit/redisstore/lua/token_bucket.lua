-- token_bucket: what was spent, and how it drains.
--
-- stored   '<ddddd': spent, den, num, at, lives. spent: units spent as of `at`,
--          counted in 1/den of a unit, of which num drain every µs; at, lives: µs
--          since the epoch. Absent: nothing is spent. What is held is what was
--          spent, not what remains, so that a raised burst helps at once. 40 bytes
--          take Redis no more memory than fewer would.
--          Where a smaller plan has cut what was spent, its former behind it,
--          '<dddddd': spent, den, num, most, under, scale. That is a second account
--          of the same bucket as of `at`, which goes on from what stood before the
--          cut, and to which is charged what is charged to the first. spent, den,
--          num: as above; most: what it began with, and never is above. A policy
--          that holds more than under/scale units sees the larger of the two.
-- policy   capacity: what the bucket holds, in 1/den units, < 2^53: burst * den,
--          or 0 for a quota of 0, so that nothing is ever admitted
--          num, den: num/den units come back every µs. That is quota/window,
--          reduced by the caller; 1 <= den <= 366 days in µs
-- amount   spent, in 1/den units
-- receipt  spent, at
-- expiry   when all is refilled, and up to an eighth of what a full bucket takes
--          later. `lives` is the time up to which the key lives at least; a state
--          that runs out before it keeps the expiry that the key has, since to
--          set one costs half as much again as the write itself.
--
-- The bucket of leaky_bucket is this one.
local token_bucket = {}
algorithms[1] = token_bucket

-- drain returns what is left of spent after so many µs. What drains may be no
-- exact number, but then it is more than was spent.
local function drain(spent, num, us)
	local drained = us * num
	if drained < spent then return spent - drained end
	return 0
end

-- recall returns what counts of a bucket of which more was spent than it holds, or
-- that has a former, and what is its former now; nothing for a former that is
-- none. held is what was spent in the scale of the policy, den.
local function recall(stored, spent, scale, num, at, held, capacity, den)
	local us, left, former = math.max(0, now - at), 0, nil
	if #stored > 40 then
		local before, fden, fnum, most, under, of = parse('<dddddd', stored, 41)
		if not (before > 0 and before <= most and most < exact and fden >= 1 and fden < exact
			and fnum >= 1 and fnum < exact and under >= 0 and under < exact and of >= 1 and of < exact
			and before % 1 + fden % 1 + fnum % 1 + most % 1 + under % 1 + of % 1 == 0) then
			return
		end
		left = drain(before, fnum, us)
		former = {left, fden, fnum, most, under, of}
		if above(capacity, den, under, of) then
			held = math.max(held, rescale(before, fden, den, capacity))
			if held <= capacity then left = 0 end
		end
	end
	if held > capacity then -- the plan was lowered
		held = capacity
		if left == 0 then
			left = drain(spent, num, us)
			former = {left, scale, num, spent}
		end
		former[5], former[6] = capacity, den
	end
	if left == 0 then former = nil end
	return held, former
end

function token_bucket.open(key, capacity, num, den)
	local spent, at, lives, former = 0, now, 0, nil
	local stored = pcall('GET', key)
	if stored then
		if #stored ~= 40 and #stored ~= 88 then return nil, stored end
		local scale, rate, held
		spent, scale, rate, at, lives = parse('<ddddd', stored)
		if not (spent >= 0 and spent < exact and scale >= 1 and scale < exact and rate >= 1 and rate < exact
			and at >= 0 and at - now <= year and lives >= 0 and lives < exact
			and spent % 1 + scale % 1 + rate % 1 + at % 1 + lives % 1 == 0) then
			return nil, stored
		end
		held = rescale(spent, scale, den, capacity)
		if held > capacity or #stored > 40 then
			held, former = recall(stored, spent, scale, rate, at, held, capacity, den)
			if not held then return nil, stored end
		end
		spent = held
		if now > at then
			-- A clock that stands still or steps back refills nothing, and `at`
			-- stays, so that the same span is not refilled twice.
			spent = drain(spent, num, now - at)
			at = now
			if former and not above(former[1], former[2], spent, den) then former = nil end
		end
	end
	local charge = {
		algorithm = token_bucket, before = spent, after = spent, most = capacity, den = den,
		num = num, at = at, lives = lives,
	}
	if former then charge.former = former end
	return charge
end

-- wait is until enough has drained; a clock that is behind has to catch up first.
function token_bucket.wait(charge, spent, cost)
	local over, num = spent - (charge.quota or charge.most) + cost * charge.den, charge.num
	local rest = over % num
	local us = (over - rest) / num
	if rest > 0 then us = us + 1 end
	if charge.at > now then us = us + (charge.at - now) end
	return us
end

function token_bucket.save(charge, key)
	local spent, num, at, behind = charge.after, charge.num, charge.at, ''
	local drained = (spent - spent % num) / num
	if charge.former then
		local left, fden, fnum, most, under, of = unpack(charge.former)
		left = math.min(most, left + rescale(spent - charge.before, charge.den, fden, most))
		drained = math.max(drained, (left - left % fnum) / fnum)
		behind = pack('<dddddd', left, fden, fnum, most, under, of)
	end
	drained = at + drained + 1
	if drained <= charge.lives then
		return rewrite(key, pack('<ddddd', spent, charge.den, num, at, charge.lives) .. behind)
	end
	local us = drained - now + charge.most / num / 8
	us = us - us % 1000
	local lives = now + us
	if lives >= exact then lives = 0 end -- beyond the year 2255: set it every time
	return keep(key, pack('<ddddd', spent, charge.den, num, at, lives) .. behind, us / 1000 + 1)
end

function token_bucket.receipt(charge)
	return charge.after, charge.at
end
