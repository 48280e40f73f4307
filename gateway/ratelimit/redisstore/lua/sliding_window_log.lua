-- sliding_window_log: every unit with the time it was charged at. A unit counts
-- until it is a window old, so that no span of a window ever has more than quota.
--
-- stored   a list of integers, one for each unit, oldest first: µs since the
--          epoch. Absent: nothing counts. Those that no longer count go with the
--          next charge.
-- policy   quota: units, >= 0, <= 100,000
--          window: µs, > 0
-- amount   units of this call, that are to be appended
-- receipt  the time they are appended with, 0
-- expiry   when the newest unit is a window old, rounded up to the next ms, and
--          one more. It is set in the same script as the units.
--
-- The memory of a key is that of quota units, about 10 bytes each, and the time
-- of a decision grows with its cost and with the logarithm of the quota.
local sliding_window_log = {}
algorithms[4] = sliding_window_log

-- unit returns the time of the unit at index, from 0; nil for what we never wrote.
local function unit(key, index)
	local at = pcall('LINDEX', key, index)
	if type(at) ~= 'string' or not string.find(at, '^%d+$') then return nil end
	at = tonumber(at)
	if at - now <= year then return at end
end

function sliding_window_log.open(key, quota, window)
	local length = pcall('LLEN', key)
	if type(length) == 'table' then return nil, length end
	-- Units up to first no longer count.
	local first, newest = 0, now
	if length > 0 then
		local oldest, last_one = unit(key, 0), unit(key, length - 1)
		if not oldest or not last_one then return nil end
		if now - last_one >= window then
			first = length
		else
			-- If the clock went back, the order is kept, so that the oldest units
			-- are the first to leave.
			if last_one > newest then newest = last_one end
			if now - oldest >= window then
				local counts = length - 1
				while counts - first > 1 do
					local middle = math.floor((first + counts) / 2)
					local at = unit(key, middle)
					if not at then return nil end
					if now - at >= window then first = middle else counts = middle end
				end
				first = counts
			end
		end
	end
	return {
		algorithm = sliding_window_log, before = 0, after = 0, quota = quota, most = quota - (length - first),
		den = 1, key = key, window = window, first = first, length = length, newest = newest,
	}
end

-- fill appends cost, at most quota, of which the newest quota units count, or as
-- many as did before, if a larger quota has granted more: the oldest make room.
function sliding_window_log.fill(charge, cost)
	if cost > charge.quota then cost = charge.quota end
	local over = cost - math.max(0, charge.most - charge.after)
	charge.after = charge.after + cost
	if over > 0 then charge.first, charge.most = charge.first + over, charge.most + over end
end

-- wait is until enough of the oldest units have left.
function sliding_window_log.wait(charge, units, cost)
	local index = charge.first + (units - charge.most) + cost - 1
	local at = charge.newest
	if index < charge.length then at = unit(charge.key, index) or at end
	return at + charge.window - now
end

function sliding_window_log.save(charge, key)
	local at, units = string.format('%.0f', charge.newest), charge.after
	local batch = {}
	-- A call takes some thousand arguments.
	for i = 1, math.min(units, 1000) do batch[i] = at end
	while units > 0 do
		local some = math.min(units, 1000)
		local pushed = pcall('RPUSH', key, unpack(batch, 1, some))
		if type(pushed) == 'table' then return pushed.err end
		units = units - some
	end
	if charge.first > 0 then pcall('LTRIM', key, charge.first, -1) end
	last(key, ceil_div(charge.newest + charge.window - now, 1000) + 1)
end

function sliding_window_log.receipt(charge)
	return charge.newest, 0
end
