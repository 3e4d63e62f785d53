-- The short way takes and releases thin locks, which is almost always enough. It does exactly what acquire.lua and
-- release.lua do, without what all else costs. A lease that needs more gets no answer here, and takes the long way
-- afterwards. The order does not matter, because the leases done here are of different locks.

-- A thin lock is one member of a zset: its name, the ID of its lease and the record of that
-- holder (see state.lua). It has one holder, an exclusive lease, and no waiter. A lease that
-- lives with its session is on record nowhere else, so that a client that knows the member
-- sends ZREM to release it, instead of a call of this program. A timed lease is a member of X
-- too. All scores are 0, so the members are in the order of the names.
local function thin(name)
  return call('ZRANGEBYLEX', THIN, '[' .. name .. '\n', '(' .. name .. '\11', 'LIMIT', '0', '1')[1]
end

-- Whether there is one: the answer is cheaper.
local function isthin(name)
  return call('ZLEXCOUNT', THIN, '[' .. name .. '\n', '(' .. name .. '\11') > 0
end

-- Whether a session surely lives. A key ends with it, or before, and says so sooner than its end in X does. Without X, or
-- with a foreign one, none does.
local function lives(sid)
  return call('ZCARD', X) > 0 and call('EXISTS', T .. 'u:' .. sid) == 1
end

-- One exclusive lease of a session, alone in its execution, whose lock is free: without what all
-- else costs. It reads what shows that the data is complete and that the session lives, and both
-- forms of the lock. Returns the answer, the token and the time. The first command has a missing key: see execute.
local function takeone(remembers)
  local t, name, lease = termsOf(ARGV[5]), ARGV[6], ARGV[7]
  if t.ttl > 0 or t.mode ~= 'x' then return nil end
  tried = true
  if call('EXISTS', STREAM, T .. 'l:' .. name, T .. 'd:' .. lease) > 0 or not lives(t.sid) then return nil end
  local text = call('GET', KEY)
  if not text then return nil end
  see(text)
  if marker.identity ~= ARGV[1] or now < marker.born or ending() > now then return nil end
  if isthin(name) or unmet(ARGV[1], remembers) then return nil end
  local token = tokens('1')
  if not token then return nil end
  local both = num(token) .. '\n' .. instant
  call('ZADD', THIN, '0', name .. '\n' .. lease .. t.head .. both .. t.tail)
  return both
end

-- The first lease of each lock in an operation, as its position in ARGV, of locks that are free. The name of the lock stands
-- there, and the ID of the lease after it. The lease was not released before it was requested.
local function unheld(from, to)
  local those, keys, names = {}, {}, {}
  for i = from, to, 2 do
    local name = ARGV[i]
    if not names[name] then
      local k = #those + 1
      those[k], names[name] = i, true
      keys[2 * k - 1], keys[2 * k] = T .. 'l:' .. name, T .. 'd:' .. ARGV[i + 1]
    end
  end
  local some = call('EXISTS', unpack(keys)) > 0
  local free = {}
  for k, i in ipairs(those) do
    if not (some and call('EXISTS', keys[2 * k - 1], keys[2 * k]) > 0) and not isthin(ARGV[i]) then free[#free + 1] = i end
  end
  return free
end

-- The arguments are those of acquire: see acquire.lua. Returns the leases that were
-- granted, the token of the first, and the time they have left.
local function take(i, n)
  local t = termsOf(ARGV[i])
  local ttl = t.ttl
  if t.mode ~= 'x' then return nil end -- it depends on the holders
  if ttl > 0 and (ttl > marker.longest or now - marker.seen > marker.longest * 125) then return nil end -- the marker has to note the TTL
  if t.sid ~= '' and not lives(t.sid) then return nil end
  local those = unheld(i + 1, i + n - 1)
  if #those == 0 then return nil end
  local first = tokens(#those)
  if not first then return nil end
  local members, ends = {}, {}
  local head, tail = t.head, '\n' .. instant .. t.tail
  for k, at in ipairs(those) do
    members[2 * k - 1], members[2 * k] = '0', ARGV[at] .. '\n' .. ARGV[at + 1] .. head .. num(first + k - 1) .. tail
  end
  if ttl > 0 then
    local e = num(now + ttl * 1000)
    for k, at in ipairs(those) do ends[2 * k - 1], ends[2 * k] = e, 't:' .. ARGV[at + 1] .. ':' .. ARGV[at] end
    call('ZADD', X, unpack(ends))
  end
  call('ZADD', THIN, unpack(members))
  return those, first, ttl * 1000
end

-- The arguments are those of release: see release.lua. Releases the leases for which the client sent the member of THIN, and
-- an empty ID, if they still are thin: then the answer is in done, by their position in ARGV.
local function untake(i, n, done)
  for j = i + 2, i + n - 1, 2 do
    if ARGV[j + 1] == '' and call('ZREM', THIN, ARGV[j]) == 1 then done[j] = OK end
  end
end
