-- settle: add to buckets what was spent of them while this server was away, as
-- far as it still counts.
--
-- KEYS[i]  the bucket of debt i, from 1; no key stands there twice
-- ARGV[1]  numbers, as numbers.lua says; for each debt nine:
--            algorithm  as in take
--            x, y       what the head of the algorithm's function below says
--            spent      what counts of the debt now, an amount of that algorithm
--            policy     five numbers, as in take
--          and then, for each debt of a sliding_window_log in order, x pairs: the
--          age of units, µs, the oldest first, and how many have it
--
-- reply    for each debt the units by which its bucket has grown, rounded up; -1
--          where the key holds what we never wrote, which stays as it is
-- error    CLOCK now: as in take. Any other is the server's own. With an error
--          nothing was added to any bucket.
-- expiry   as the algorithms set it: every key that is written has one
--
-- Whoever owes tells ages, since its clock may be off; the time is this server's.
-- Nothing grows beyond what its policy holds, and no window that is open here is
-- moved or made longer.
local n = #KEYS
local pairs_from = 72 * n + 1 -- where in ARGV[1] the units of the next log are

-- add adds an amount to what counts, up to most.
local function add(charge, amount, most)
	local room = most - charge.after
	if room > 0 then charge.after = charge.after + math.min(room, amount) end
end

local settle = {}

-- token_bucket, leaky_bucket: spent: what has not drained of it
settle[1] = function(charge, spent) add(charge, spent, charge.quota or charge.most) end
settle[6] = settle[1]

-- fixed_window: x: µs until the window ends that the debt opened, > 0. That is
-- the window if none is open here.
settle[2] = settle[1]

-- the same on a calendar: x: µs since the epoch, when the window of the debt ends;
-- y: the age of its oldest unit. A debt of the window of now is one that ends
-- with it or, where a clock is far off, one that is too young for the one before.
settle[3] = function(charge, spent, ends_then, oldest, _, b0, b1, b2, b3)
	local begins, ends = b2, b3
	if now < b1 then begins, ends = b0, b1 elseif now < b2 then begins, ends = b1, b2 end
	if ends == ends_then or now - oldest >= begins then add(charge, spent, charge.most) end
end

-- sliding_window_counter: spent: units of its window; x: units of the one before;
-- y: the age of the window's begin. Windows begin at multiples here; a clock that
-- is off has others, so it is the nearest that is meant.
settle[5] = function(charge, used, previous, age)
	local window = charge.window
	local begins = now - age + window / 2
	begins = begins - begins % window
	if begins == charge.begins - window then
		used, previous = 0, used
	elseif begins == charge.begins + window then
		used, previous = used + previous, 0 -- that clock is fast
	elseif begins ~= charge.begins then
		return
	end
	local room = charge.quota - charge.previous
	if previous > 0 and room > 0 then
		charge.faded = math.min(room, previous) -- units that the one before grows by
		charge.previous = charge.previous + charge.faded
		local weighted = charge.previous
		if now > charge.begins then
			local cut
			weighted, cut = mul_div(window - (now - charge.begins), charge.previous, window)
			if cut then weighted = weighted + 1 end
		end
		charge.most = charge.quota - weighted
	end
	add(charge, used, charge.most)
end

-- sliding_window_log: x: how many pairs there are.
settle[4] = function(charge, _, x)
	local new, count = {}, 0
	for _ = 1, x do
		local age, units = parse('<dd', ARGV[1], pairs_from)
		pairs_from = pairs_from + 16
		if age < charge.window then
			local at = string.format('%.0f', now - age)
			for i = count + 1, count + units do new[i] = at end
			count = count + units
		end
	end
	charge.new = new
	charge.after = math.min(count, math.max(0, charge.most))
end

-- merge writes a log with its new units among those it has, each at its time, and
-- keeps the newest that count.
local function merge(charge, key)
	local new, count = charge.new, #charge.new
	local oldest = tonumber(new[1])
	-- Those up to low are older; the others are few, since the server was away.
	local low, high = charge.first, charge.length
	while low < high do
		local middle = math.floor((low + high) / 2)
		local at = unit(key, middle)
		if not at then return 'CORRUPT' end
		if at <= oldest then low = middle + 1 else high = middle end
	end
	local tail, merged = {}, new
	if low < charge.length then
		tail = pcall('LRANGE', key, low, -1)
		merged = {}
		local i, j = 1, 1
		while i <= count or j <= #tail do
			local at = tonumber(tail[j])
			if j <= #tail and not at then return 'CORRUPT' end
			if j > #tail or i <= count and tonumber(new[i]) < at then
				merged[#merged + 1], i = new[i], i + 1
			else
				merged[#merged + 1], j = tail[j], j + 1
			end
		end
	end
	local first = charge.first
	local had = charge.length - first
	-- As many as count by the quota, or did before, if a larger one granted more.
	local over = had + count - math.max(charge.quota, had)
	if over > 0 then first = first + over end
	-- first is now the oldest of all that are to stay: of what is before the
	-- merged ones, and beyond those of the merged ones themselves.
	local from = 1
	if first > low then first, from = low, 1 + first - low end
	if #tail > 0 then
		-- A server that is out of memory has refused by now, or lets a script that
		-- has written end what it began, so that nothing is lost between the two.
		local refused = pcall('RPUSH', key, merged[#merged])
		if type(refused) == 'table' then return refused.err end
		if low == 0 then pcall('DEL', key) else pcall('LTRIM', key, 0, low - 1) end
	end
	while from <= #merged do
		-- A call takes some thousand arguments.
		local to = math.min(from + 999, #merged)
		local pushed = pcall('RPUSH', key, unpack(merged, from, to))
		if type(pushed) == 'table' then return pushed.err end
		from = to + 1
	end
	if first > 0 then pcall('LTRIM', key, first, -1) end
	last(key, ceil_div(tonumber(merged[#merged]) + charge.window - now, 1000) + 1)
end

local charges, reply = {}, {}
for i = 1, n do
	local number, x, y, spent, p1, p2, p3, p4, p5 = parse('<ddddddddd', ARGV[1], 72 * i - 71)
	if number == 2 then p2 = math.min(p2, x) end
	local charge, foreign = algorithms[number].open(KEYS[i], p1, p2, p3, p4, p5)
	reply[i] = 0
	if charge then
		charges[i] = charge
		settle[number](charge, spent, x, y, p1, p2, p3, p4, p5)
	elseif type(foreign) == 'table' and not string.find(foreign.err, 'WRONGTYPE', 1, true) then
		return foreign
	else
		reply[i] = -1
		if number == 4 then pairs_from = pairs_from + 16 * x end
	end
end
for i = 1, n do
	local charge = charges[i]
	if charge then
		local grown, refused = charge.after - charge.before, nil
		if charge.new then
			if #charge.new > 0 and charge.quota > 0 then refused = merge(charge, KEYS[i]) end
		elseif grown > 0 or charge.faded then
			refused = charge.algorithm.save(charge, KEYS[i])
		end
		if refused == 'CORRUPT' then
			reply[i] = -1
		elseif refused then
			-- What the server refuses (no memory, a replica) it refuses from the
			-- first write on, so that nothing is half written.
			return {err = refused}
		else
			reply[i] = ceil_div(grown, charge.den) + (charge.faded or 0)
		end
	end
end
return reply
