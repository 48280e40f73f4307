-- board: what the instances of the gateway tell each other. One call says that
-- this one is alive and which buckets were given something back here, and returns
-- how many are alive and which buckets were given something back elsewhere.
--
-- KEYS[1]  a hash, about the board itself
--            created     ms since the epoch when it began; see young
--            generation  another number whenever the list of members is another
--            sequence    how many buckets were ever told of
-- KEYS[2]  a sorted set of the instances; the score is until when one counts as
--          alive without another word from it, ms since the epoch
-- KEYS[3]  a hash: for each instance since when it is there, ms since the epoch, a
--          space, and what it says of itself
-- KEYS[4]  a list of the last `most` buckets that were told of, 8 bytes each. The
--          newest has the number sequence, the one before it one less, and so on.
-- ARGV[1]  this instance
-- ARGV[2]  what it says of itself
-- ARGV[3]  ttl, ms: how long it counts as alive from here
-- ARGV[4]  ms that the keys outlive the last call of all
-- ARGV[5]  the sequence up to which it has read, -1 for none
-- ARGV[6]  the generation of the list of members that it has
-- ARGV[7]  1: it stops
-- ARGV[8]  the buckets to tell of, 8 bytes each
-- ARGV[9]  1: all buckets, instead
--
-- reply    alive      instances, this one included unless it stops
--          young      1: the board began less than ttl ago, so there may be others
--                     that have had no time to say that they are alive
--          sequence   up to which this instance has read now
--          all        1: what was told of since it read last is not known any more
--          freed      the buckets told of since then, 8 bytes each
--          generation
--          members    where the generation is another: name and text by turns, as
--                     in KEYS[3], of 256 instances at most; else empty
-- error    CORRUPT i: KEYS[i] is of another type. Any other is the server's own.
-- expiry   all four keys have one when the script ends
--
-- All is read before anything is written, and what is written may be written
-- again: after an error the next call sets it right.
local most = 1000 -- that of maxFreed in board.go
local me, ttl, keep, has_read = ARGV[1], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local ms = math.floor(now / 1000)

local board, said, length = pcall('HMGET', KEYS[1], 'created', 'generation', 'sequence'), pcall('HGET', KEYS[3], me), pcall('LLEN', KEYS[4])
local dead = pcall('ZRANGEBYSCORE', KEYS[2], '-inf', ms, 'LIMIT', 0, most)
for i, reply in ipairs({board, dead, said, length}) do
	if type(reply) == 'table' and reply.err then
		if string.find(reply.err, 'WRONGTYPE', 1, true) then return redis.error_reply('CORRUPT ' .. i) end
		return reply
	end
end
-- Those that would count for longer than any instance may say: the clock has
-- stepped back. Whoever is alive says so again.
for _, name in ipairs(pcall('ZRANGEBYSCORE', KEYS[2], ms + 2 * ttl, '+inf', 'LIMIT', 0, most)) do
	dead[#dead + 1] = name
end

local refused -- the first error of the server
local function write(...)
	local reply = pcall(...)
	if type(reply) == 'table' and reply.err then refused = refused or reply end
	return reply
end

-- Who is there.
local others = false -- the list of members is another
for _, name in ipairs(dead) do
	write('ZREM', KEYS[2], name)
	write('HDEL', KEYS[3], name)
	if name == me then said = false end
	others = true
end
local created, generation = tonumber(board[1] or ''), tonumber(board[2] or '')
if not created or created > ms then created = ms end
if pcall('ZCARD', KEYS[2]) == 0 then
	created, said = ms, false
	write('DEL', KEYS[3]) -- what is there belongs to nobody
end
if ARGV[7] == '1' then
	write('ZREM', KEYS[2], me)
	write('HDEL', KEYS[3], me)
	others = true
else
	write('ZADD', KEYS[2], ms + ttl, me)
	local since, text = string.match(said or '', '^(%d+) (.*)$')
	if text ~= ARGV[2] then
		write('HSET', KEYS[3], me, (since or string.format('%.0f', ms)) .. ' ' .. ARGV[2])
		others = true
	end
end
-- A number that no earlier board has had.
if not generation then generation = now elseif others then generation = generation + 1 end

-- What the others told of, then what is told to them: so nothing of one's own is
-- read by oneself.
local sequence, all, freed = tonumber(board[3] or ''), 0, ''
if not sequence then sequence = now end -- so whoever has read of an earlier board sees a gap
local missing = sequence - has_read
if has_read < 0 or missing == 0 then
	all = 0
elseif missing < 0 or missing > length then
	all = 1
else
	freed = table.concat(pcall('LRANGE', KEYS[4], -missing, -1))
end
local told = ARGV[8]
if ARGV[9] == '1' then
	sequence = sequence + most + 1 -- a gap that the list cannot fill
elseif #told > 0 then
	for from = 1, #told, 800 do
		local some = {}
		for at = from, math.min(from + 799, #told), 8 do some[#some + 1] = string.sub(told, at, at + 7) end
		write('RPUSH', KEYS[4], unpack(some))
	end
	write('LTRIM', KEYS[4], -most, -1)
	sequence = sequence + #told / 8
end

write('HSET', KEYS[1], 'created', string.format('%.0f', created),
	'generation', string.format('%.0f', generation), 'sequence', string.format('%.0f', sequence))
for i = 1, 4 do write('PEXPIRE', KEYS[i], keep) end
if refused then return refused end

local members = {}
if string.format('%.0f', generation) ~= ARGV[6] then
	local names = pcall('ZRANGE', KEYS[2], 0, 255)
	local texts = #names > 0 and pcall('HMGET', KEYS[3], unpack(names)) or {}
	for i, name in ipairs(names) do
		members[#members + 1] = name
		members[#members + 1] = texts[i] or ''
	end
end
local young = ms - created < ttl and 1 or 0
return {pcall('ZCARD', KEYS[2]), young, sequence, all, freed, generation, members}
