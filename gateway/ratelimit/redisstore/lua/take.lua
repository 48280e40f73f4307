-- take: decide a list of charges, all or none.
--
-- KEYS[i]          the bucket of charge i, from 1. Charges may share one, of one
--                  policy; they are then decided one after another.
-- ARGV[6i-5]       algorithm: 1 token_bucket, 2 fixed_window
-- ARGV[6i-4]       cost, units, >= 0; 0 looks, is allowed and charges nothing
-- ARGV[6i-3]       quota, units per window, >= 0
-- ARGV[6i-2]       token_bucket: burst, units, >= 1       fixed_window: window, µs, > 0
-- ARGV[6i-1]       token_bucket: num, units per den µs    fixed_window: unused
-- ARGV[6i]         token_bucket: den, µs per num units    fixed_window: unused
--
-- reply            four integers for each charge, in order:
--                  allowed 0|1, remaining units, reset µs, retry_after µs (0 when
--                  allowed, -1 for never)
-- error            CORRUPT i: the key of charge i holds what we never wrote.
--                  Any other is the server's own.
-- expiry           every key that is written gets one in the same command
--
-- Everything is read before anything is written, and nothing is written unless
-- all charges fit: an error and a denial leave all keys as they were. One GET
-- and, if admitted, one SET for each key.
local algorithms = {['1'] = token_bucket, ['2'] = fixed_window}

local loaded = {} -- by key: the state before this call
local work = {}   -- by key: the state with the charges so far
local taken = {}  -- by key: the cost of those charges
local charges = {}
local admitted = true

for i = 1, #KEYS do
	local key, a = KEYS[i], 6 * i - 5
	local algorithm = algorithms[ARGV[a]]
	local cost = tonumber(ARGV[a + 1])
	local policy = {tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5])}

	if not loaded[key] then
		local stored = redis.pcall('GET', key)
		if type(stored) == 'table' then
			if not string.find(stored.err, 'WRONGTYPE', 1, true) then return stored end
			return redis.error_reply('CORRUPT ' .. i)
		end
		local state = algorithm.load(stored)
		if not state then return redis.error_reply('CORRUPT ' .. i) end
		loaded[key] = state
	end

	local before = algorithm.advance(loaded[key], policy)
	local state = before
	if work[key] then state = algorithm.advance(work[key], policy) end
	local charge = {algorithm, policy, before, false, 0}
	if cost == 0 then
		charge[4] = state
	elseif algorithm.admits(state, policy, cost) then
		state = algorithm.charge(state, policy, cost)
		work[key], taken[key] = state, (taken[key] or 0) + cost
		charge[4] = state
	else
		admitted = false
		-- Whoever comes back asks again for what earlier charges of this list
		-- wanted of the same bucket, so that has to be there as well.
		charge[5] = algorithm.retry_after(before, policy, (taken[key] or 0) + cost)
	end
	charges[i] = charge
end

local reply = {}
for i = 1, #charges do
	local algorithm, policy, before, after, retry_after = unpack(charges[i])
	local key = KEYS[i]
	if admitted and work[key] then
		local value, ms = algorithm.save(work[key], policy)
		work[key] = nil -- written once, with all its charges
		local written = keep(key, value, ms)
		-- What the server refuses (no memory, a replica) it refuses from the
		-- first write on, so that nothing is half written.
		if type(written) == 'table' and written.err then return written end
	end
	local allowed, state = 0, before
	if after then allowed = 1 end
	if admitted then state = after end
	local remaining, reset = algorithm.describe(state, policy)
	local r = 4 * i
	reply[r - 3], reply[r - 2], reply[r - 1], reply[r] = allowed, remaining, reset, retry_after
end
return reply
