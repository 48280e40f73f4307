-- fixed_window: a count that ends all at once.
--
-- stored   '<dd': used, end. used: units charged in this window; end: µs since
--          the epoch, when the window is over. Absent, or over: nothing is used
--          and no window is open.
-- policy   quota: units, >= 0
--          number 2: window, µs, > 0. It opens with the first charge.
--          number 3: b0 < b1 < b2 < b3, µs since the epoch: where three windows
--          of a calendar begin, and where the last one ends. The clock of this
--          server picks one of them.
-- amount   used, units
-- receipt  end, 0
-- error    CLOCK now: the time lies outside of b0 to b3
-- expiry   the end of the window, rounded up to the next ms, and one more. It is
--          set with the first charge of a window and kept by the others.
--
-- The expiry is set in the same command as the count: a count whose expiry is
-- set in a second step can be left without one, and then denies for ever.
local fixed_window = {}
algorithms[2] = fixed_window

function fixed_window.open(key, quota, window, beyond)
	local used, ends = 0, now + window
	local stored = pcall('GET', key)
	if stored then
		if #stored ~= 16 then return nil, stored end
		local stored_used, stored_end = parse('<dd', stored)
		if not (stored_used >= 0 and stored_used < exact and stored_end >= 0
			and stored_end - now <= year + window + beyond and stored_used % 1 + stored_end % 1 == 0) then
			return nil, stored
		end
		if stored_used > 0 and now < stored_end then used, ends = stored_used, stored_end end
	end
	return {
		algorithm = fixed_window, before = used, after = used, most = quota, den = 1,
		-- What is used is over some time, also where nothing is granted then.
		resets = used > 0, ends = ends,
	}
end

algorithms[3] = {open = function(key, quota, b0, b1, b2, b3)
	if now < b0 or now >= b3 then return nil, {err = string.format('CLOCK %.0f', now)} end
	local ends = b3
	if now < b1 then ends = b1 elseif now < b2 then ends = b2 end
	-- Another window may be longer than this one, but not than all of these.
	return fixed_window.open(key, quota, ends - now, b3 - b0)
end}

-- wait is until the window ends.
function fixed_window.wait(charge)
	return charge.ends - now
end

function fixed_window.save(charge, key)
	local value = pack('<dd', charge.after, charge.ends)
	if charge.before > 0 then return rewrite(key, value) end
	return keep(key, value, ceil_div(charge.ends - now, 1000) + 1)
end

function fixed_window.receipt(charge)
	return charge.ends, 0
end
