-- sliding_window_counter: what was used in this window, and of the one before it
-- the part that the last window's length still covers, as if its units had been
-- spread evenly over it.
--
-- stored   '<ddd': used, previous, begins. begins: µs since the epoch, when the
--          window began that had `used` units; windows begin at its multiples.
--          previous: the units of the window before that one. Absent: none.
-- policy   quota: units, >= 0
--          window: µs, > 0
-- amount   used, units
-- receipt  begins; reset as it was without what is charged
-- expiry   the end of the next window, when nothing is counted of this one,
--          rounded up to the next ms, and one more. It is set with the first
--          charge of a window and kept by the others.
local sliding_window_counter = {}
algorithms[5] = sliding_window_counter

function sliding_window_counter.open(key, quota, window)
	local used, previous, begins = 0, 0, now - now % window
	local stored = pcall('GET', key)
	if stored then
		if #stored ~= 24 then return nil, stored end
		local stored_used, stored_previous, stored_begins = parse('<ddd', stored)
		if not (stored_used >= 0 and stored_used < exact and stored_previous >= 0 and stored_previous < exact
			and stored_begins >= 0 and stored_begins - now <= year
			and stored_used % 1 + stored_previous % 1 + stored_begins % 1 == 0) then
			return nil, stored
		end
		if stored_used == 0 and stored_previous == 0 then
			-- as if absent
		elseif begins <= stored_begins then -- in it, or the clock went back
			used, previous, begins = stored_used, stored_previous, stored_begins
		elseif begins - window == stored_begins then
			previous = stored_used
		end
	end
	local weighted = previous
	if previous > 0 and now > begins then
		local cut
		weighted, cut = mul_div(window - (now - begins), previous, window)
		if cut then weighted = weighted + 1 end
	end
	return {
		algorithm = sliding_window_counter, before = used, after = used, quota = quota, most = quota - weighted,
		den = 1, window = window, previous = previous, begins = begins,
	}
end

-- decayed returns how many µs of a window have to pass until no more than room
-- of the previous one's units are counted.
local function decayed(previous, room, window)
	if room >= previous then return 0 end
	return window - (mul_div(room, window, previous))
end

-- wait is until enough of the previous window has faded or, if the room is not
-- in this window, until enough of this one has faded in the next.
function sliding_window_counter.wait(charge, used, cost)
	local window, passed = charge.window, now - charge.begins -- < 0: behind
	local room = charge.quota - used - cost
	if room < 0 then return window - passed + decayed(used, charge.quota - cost, window) end
	local us = decayed(charge.previous, room, window) - passed
	if passed < 0 or us > 0 then return us end
	return 0
end

function sliding_window_counter.save(charge, key)
	local value = pack('<ddd', charge.after, charge.previous, charge.begins)
	if charge.before > 0 then return rewrite(key, value) end
	return keep(key, value, ceil_div(charge.begins + 2 * charge.window - now, 1000) + 1)
end

function sliding_window_counter.receipt(charge)
	local one_more = math.max(0, charge.most - charge.before) + 1
	if one_more > charge.quota then return charge.begins, 0 end
	return charge.begins, sliding_window_counter.wait(charge, charge.before, one_more)
end
