-- token_bucket: what was spent, and how it drains.
--
-- stored   '<dddd': spent, den, at, lives. spent: units spent as of `at`, counted
--          in 1/den of a unit; at, lives: µs since the epoch. Absent: nothing is
--          spent. What is held is what was spent, not what remains, so that a
--          raised burst helps at once.
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

function token_bucket.open(key, capacity, num, den)
	local spent, at, lives = 0, now, 0
	local stored = pcall('GET', key)
	if stored then
		if #stored ~= 32 then return nil, stored end
		local scale
		spent, scale, at, lives = parse('<dddd', stored)
		if not (spent >= 0 and spent < exact and scale >= 1 and scale < exact and at >= 0 and at < exact
			and lives >= 0 and lives < exact and spent % 1 + scale % 1 + at % 1 + lives % 1 == 0) then
			return nil, stored
		end
		if scale ~= den then
			-- The plan was changed. Whole units stay whole; a part of one is
			-- rounded against the caller.
			local part = spent % scale
			spent = (spent - part) / scale * den
			if spent < capacity then
				local scaled, cut = mul_div(part, den, scale)
				spent = spent + scaled
				if cut then spent = spent + 1 end
			end
		end
		if spent > capacity then spent = capacity end -- the plan was lowered
		if now > at then
			-- What drains may be no exact number, but then it is more than was
			-- spent. A clock that stands still or steps back refills nothing, and
			-- `at` stays, so that the same span is not refilled twice.
			local drained = (now - at) * num
			if drained < spent then spent = spent - drained else spent = 0 end
			at = now
		end
	end
	return {
		algorithm = token_bucket, before = spent, after = spent, most = capacity, den = den,
		num = num, at = at, lives = lives,
	}
end

-- wait is until enough has drained; a clock that is behind has to catch up first.
function token_bucket.wait(charge, spent, cost)
	local over, num = spent - charge.most + cost * charge.den, charge.num
	local rest = over % num
	local us = (over - rest) / num
	if rest > 0 then us = us + 1 end
	if charge.at > now then us = us + (charge.at - now) end
	return us
end

function token_bucket.save(charge, key)
	local spent, num = charge.after, charge.num
	local drained = charge.at + (spent - spent % num) / num + 1
	if drained <= charge.lives then
		return rewrite(key, pack('<dddd', spent, charge.den, charge.at, charge.lives))
	end
	local us = drained - now + charge.most / num / 8
	us = us - us % 1000
	local lives = now + us
	if lives >= exact then lives = 0 end -- beyond the year 2255: set it every time
	return keep(key, pack('<dddd', spent, charge.den, charge.at, lives), us / 1000 + 1)
end

function token_bucket.receipt(charge)
	return charge.after, charge.at
end
