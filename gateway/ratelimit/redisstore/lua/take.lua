-- take: decide a list of charges, all or none.
--
-- KEYS[i]  the bucket of charge i, from 1
-- ARGV[1]  numbers, as numbers.lua says; for each charge nine:
--            algorithm  1 token_bucket, 2 fixed_window, 3 the same on a calendar,
--                       4 sliding_window_log, 5 sliding_window_counter,
--                       6 leaky_bucket
--            flags      0, or the sum of what holds:
--                        1  it counts rejected attempts
--                        2  shadow: it is decided and never denies
--                        4  candidate: another number for a limit; never denies
--                        8  the charge before this candidate is that limit, its
--                           live twin
--                       16  its reply is to have a receipt for a refund
--                       32  once for each unit that is to be charged in advance
--                           as well: when the request is admitted, as many of
--                           them as are free
--            earlier    0, or the number of the last charge before it on the same
--                       bucket, and so of the same policy
--            cost       units, >= 0; 0 looks, is allowed and charges nothing
--            policy     five numbers, which the head of the algorithm's file
--                       lists; the rest is 0
--
-- reply    four integers for each charge, in order: allowed 0|1, remaining units,
--          reset µs, and a wait in µs. That is for an allowed charge of an
--          admitted request how long it has to wait for its drip, and for any
--          other its retry_after, -1 for never. Behind those of all charges: two
--          for each receipt, what the head of the algorithm's file says. Behind
--          those, if there is a flag of 32 or more, two for each charge: units that
--          were charged in advance, and the µs until the window ends to which they
--          were charged, 0 where that is none.
-- error    CORRUPT i: the key of charge i holds what we never wrote.
--          CLOCK now: the windows of a calendar that were sent lie elsewhere.
--          Any other is the server's own.
-- expiry   every key that is written has one when the script ends
--
-- Who is charged: when every enforced limit allows, all that allow. Otherwise
-- those that count rejected attempts, as much as fits, and a candidate if its
-- twin alone denies, since under its number the request would have gone through.
--
-- Everything is read before anything is written: an error leaves all keys as
-- they were, and so does a denial but for what was just said.
--
-- What an algorithm is, and what its charge:
--   open(key, …)   reads the bucket and returns the charge, as it stands now; nil
--                  and the reply, if that is one, for what we never wrote
--   wait(charge, amount, cost)  the µs until cost, which does not fit beside
--                  amount and could some time, would
--   save(charge, key)           writes charge.after; returns nil, or why not
--   receipt(charge)             what a refund has to know
--   fill(charge, cost)          as much of cost as fits, where that is not simply
--                  to add up to most
--   delay(charge)  the µs until its drip, where it has to wait for one
--   before, after  the amount that counts, without and with what is charged here
--   den            of that, the parts of a unit
--   most           the most that may count now, in parts; it may be below after
--   quota          the most that may ever count; nil where that is most
--   resets         whether reset is to be told though nothing is granted
-- One that never grows beyond eight fields is made in one piece. That, and to set
-- the others only where something is out of the ordinary, is what makes the
-- ordinary decision cheap.
local n = #KEYS
local charges, denials, receipts, lends = {0, 0}, 0, false, false

-- has tells whether flag is among those of a charge.
local function has(charge, flag)
	local flags = charge.flags
	return flags and flags % (2 * flag) >= flag
end

-- again returns a charge on the bucket of an earlier one, from where that left it.
local function again(number)
	local earlier, charge = charges[number], {}
	for field, value in next, earlier do charge[field] = value end
	if not earlier.denied then charge.taken = (earlier.taken or 0) + parse('<d', ARGV[1], 72 * number - 47) end
	charge.earlier, charge.denied = earlier, nil
	earlier.covered = true -- written once, with all its charges
	return charge
end

-- retry_after returns the µs until a charge would be allowed if so much counted;
-- 0 if it would now, -1 for never.
local function retry_after(charge, amount)
	-- Whoever comes back asks again for what earlier charges of this list wanted
	-- of the same bucket, so that has to be there as well.
	local cost = (charge.taken or 0) + charge.cost
	local parts = cost * charge.den
	if parts > (charge.quota or charge.most) then return -1 end
	if parts <= charge.most - amount then return 0 end
	return charge.algorithm.wait(charge, amount, cost)
end

-- reject settles what a charge of a request that is not admitted is charged.
local function reject(i, charge)
	local earlier, cost = charge.earlier, charge.cost
	if earlier then
		charge.after, charge.most, charge.first, charge.filled = earlier.after, earlier.most, earlier.first, earlier.filled
	else
		charge.after = charge.before
	end
	if has(charge, 4) and not charge.denied then
		local others = denials
		if has(charge, 8) and charges[i - 1].denied and not has(charges[i - 1], 2) then others = others - 1 end
		if others == 0 then charge.after = charge.after + cost * charge.den end
	elseif has(charge, 1) and cost > 0 then
		if charge.algorithm.fill then
			charge.algorithm.fill(charge, cost)
		elseif charge.after < charge.most then
			charge.after = math.min(charge.most, charge.after + cost * charge.den)
		end
		charge.counted = retry_after(charge, charge.after)
		charge.filled = true -- to be written, even if no more than was there
	end
end

for i = 1, n do
	local number, flags, earlier, cost, p1, p2, p3, p4, p5 = parse('<ddddddddd', ARGV[1], 72 * i - 71)
	local charge, foreign
	if earlier > 0 then
		charge = again(earlier)
	else
		charge, foreign = algorithms[number].open(KEYS[i], p1, p2, p3, p4, p5)
		if not charge then
			if type(foreign) == 'table' and not string.find(foreign.err, 'WRONGTYPE', 1, true) then return foreign end
			return redis.error_reply('CORRUPT ' .. i)
		end
	end
	charges[i] = charge
	if flags > 0 or cost == 0 or earlier > 0 then
		charge.flags, charge.cost = flags, cost
		receipts, lends = receipts or flags >= 16, lends or flags >= 32
	end
	if cost > 0 then
		local parts = cost * charge.den
		if parts <= charge.most - charge.after then
			charge.after = charge.after + parts
		else
			charge.cost = cost
			charge.denied = retry_after(charge, charge.before)
			if flags % 8 < 2 then denials = denials + 1 end
		end
	end
end

local reply, r = {0, 0, 0, 0}, 0
for i = 1, n do
	local charge = charges[i]
	local algorithm, den = charge.algorithm, charge.den
	local allowed, wait = 1, 0
	if charge.denied then allowed, wait = 0, charge.denied end
	if denials > 0 then
		reject(i, charge)
		wait = charge.counted or wait
	elseif allowed == 1 and algorithm.delay and charge.cost ~= 0 then
		wait = algorithm.delay(charge)
	end
	local after = charge.after
	local free = charge.most - after
	if free < 0 then free = 0 end -- the plan was lowered
	if lends and denials == 0 and allowed == 1 and (charge.flags or 0) >= 32 and not charge.covered and not charge.earlier then
		charge.lent = math.min(math.floor(charge.flags / 32), (free - free % den) / den)
		after, free = after + charge.lent * den, free - charge.lent * den
		charge.after = after
	end
	local remaining, reset = (free - free % den) / den, 0
	if (remaining + 1) * den <= (charge.quota or charge.most) or charge.resets then
		reset = algorithm.wait(charge, after, remaining + 1)
	end
	if (after ~= charge.before or charge.filled) and not charge.covered then
		local refused = algorithm.save(charge, KEYS[i])
		-- What the server refuses (no memory, a replica) it refuses from the
		-- first write on, so that nothing is half written.
		if refused then return {err = refused} end
	end
	reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = allowed, remaining, reset, wait
	r = r + 4
end
for i = 1, receipts and n or 0 do
	if has(charges[i], 16) then
		reply[r + 1], reply[r + 2] = charges[i].algorithm.receipt(charges[i])
		r = r + 2
	end
end
for i = 1, lends and n or 0 do
	local charge, lasts = charges[i], 0
	if charge.ends then
		lasts = charge.ends - now
	elseif charge.begins then
		lasts = charge.begins + charge.window - now
	end
	reply[r + 1], reply[r + 2] = charge.lent or 0, lasts
	r = r + 2
end
return reply
