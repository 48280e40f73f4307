-- plain: the ordinary request, whose limits are token buckets that are enforced,
-- each with a bucket of its own. It decides what take.lua and token_bucket.lua
-- would, in one piece: to run a script, Redis makes an object of every function
-- in it, and that costs more than the arithmetic. So here is none, and it ends
-- before any is made. What is out of the ordinary (a foreign value, a plan that
-- was changed or lowered, a clock that stepped back, a cost that never fits, 0) it
-- leaves to them, with nothing written.
--
-- KEYS, ARGV, stored value, reply and expiry are those of the two files.
local exact = 2 ^ 53
local pack, parse = struct.pack, struct.unpack
local keys, numbers, n = KEYS, ARGV[1], #KEYS

-- Six numbers for each charge, from p on: spent, parts asked for, capacity, num,
-- den, lives. A table that has its size from the start is not copied to grow.
local open, p = {
	0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
	0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
}, 0
local denied = false
for i = 1, n do
	local number, flags, earlier, cost, capacity, num, den = parse('<ddddddd', numbers, 72 * i - 71)
	local parts = cost * den
	if number ~= 1 or flags > 0 or earlier > 0 or cost == 0 or parts > capacity then open = nil break end
	local stored, spent, lives = pcall('GET', keys[i]), 0, 0
	if stored then
		if #stored ~= 40 then open = nil break end -- an error has no length
		local scale, rate, at
		spent, scale, rate, at, lives = parse('<ddddd', stored)
		if scale ~= den or rate ~= num or not (spent >= 0 and spent <= capacity and at >= 0 and at <= now
			and lives >= 0 and lives < exact and spent % 1 + at % 1 + lives % 1 == 0) then
			open = nil
			break
		end
		local drained = (now - at) * num
		if drained < spent then spent = spent - drained else spent = 0 end
	end
	if parts > capacity - spent then denied = true end
	open[p + 1], open[p + 2], open[p + 3], open[p + 4], open[p + 5], open[p + 6] = spent, parts, capacity, num, den, lives
	p = p + 6
end
if open then
	local reply, r = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0
	if n < 4 then reply = {0, 0, 0, 0} end
	p = 0
	for i = 1, n do
		local spent, parts, capacity, num, den, lives = open[p + 1], open[p + 2], open[p + 3], open[p + 4], open[p + 5], open[p + 6]
		p = p + 6
		local allowed, wait = 1, 0
		if not denied then
			spent = spent + parts
			local drained, refused = now + (spent - spent % num) / num + 1, nil
			if drained <= lives then
				refused = pcall('SET', keys[i], pack('<ddddd', spent, den, num, now, lives), 'KEEPTTL').err
			else
				local us = drained - now + capacity / num / 8
				us = us - us % 1000
				lives = now + us
				if lives >= exact then lives = 0 end
				refused = pcall('SET', keys[i], pack('<ddddd', spent, den, num, now, lives), 'PX', us / 1000 + 1 + grace).err
			end
			if refused then return {err = refused} end
		elseif parts > capacity - spent then
			local over = parts - (capacity - spent)
			local rest = over % num
			allowed, wait = 0, (over - rest) / num
			if rest > 0 then wait = wait + 1 end
		end
		local free = capacity - spent
		local part, reset = free % den, 0
		if spent > 0 then
			local rest = (den - part) % num
			reset = (den - part - rest) / num
			if rest > 0 then reset = reset + 1 end
		end
		reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = allowed, (free - part) / den, reset, wait
		r = r + 4
	end
	return reply
end
