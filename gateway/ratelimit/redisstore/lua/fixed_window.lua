-- fixed_window: a count that ends all at once. The window opens with the first
-- charge, not with the clock's minute.
--
-- stored   "used:end", decimal integers. used: units charged in this window;
--          end: µs since the epoch, when the window is over. Absent, or over:
--          nothing is used and no window is open.
-- policy   {quota, window}: quota units, >= 0, < 2^53, per window µs, > 0.
-- cost     units, >= 1.
-- expiry   the end of the window, rounded up to the next ms.
--
-- The expiry is set in the same command as the count: a count whose expiry is
-- set in a second step can be left without one, and then denies for ever.
local fixed_window = {}

-- load makes a state {used, end} of what is stored; nil for what we never wrote.
function fixed_window.load(stored)
	if not stored then return {0, 0} end
	local used, ends = string.match(stored, '^(%d+):(%d+)$')
	used, ends = tonumber(used), tonumber(ends)
	if not ends or used >= exact or ends >= exact then return nil end
	return {used, ends}
end

-- advance returns the state as it is now.
function fixed_window.advance(state)
	if now >= state[2] then return {0, 0} end
	return state
end

-- admits tells whether cost fits.
function fixed_window.admits(state, policy, cost)
	return cost <= policy[1] - state[1]
end

-- charge returns the state after cost, which fits. Only a charge opens a window.
function fixed_window.charge(state, policy, cost)
	if state[1] == 0 then return {cost, now + policy[2]} end
	return {state[1] + cost, state[2]}
end

-- describe returns remaining (units) and reset (µs until more remains).
function fixed_window.describe(state, policy)
	local remaining, reset = policy[1] - state[1], 0
	if remaining < 0 then remaining = 0 end -- the plan was lowered
	if state[1] > 0 then reset = state[2] - now end
	return remaining, reset
end

-- retry_after returns the µs until cost, which does not fit now, would; -1 for
-- never.
function fixed_window.retry_after(state, policy, cost)
	if cost > policy[1] then return -1 end
	return state[2] - now
end

-- save returns the value to store and its expiry in ms, one more than it takes.
function fixed_window.save(state)
	return string.format('%.0f:%.0f', state[1], state[2]), ceil_div(state[2] - now, 1000) + 1
end
