-- Holdfast on Redis: one program, made of the files of this folder in the order
-- head, state, marker, queue, sweep, acquire, release, hello, session, admin, main, and
-- then function or script. It runs a batch of operations for one partition. The protocol
-- is described in doc.go.
--
-- KEYS[1]  the marker of the partition: "{tag}:m". All other keys are built from the
--          tag, so that they share its hash slot.
-- ARGV     see main.lua
--
-- Times are the server's, in microseconds. Numbers stay below 2^53, where a double
-- counts exactly. They are written with %d, because tostring rounds them. What is sent often has its constants
-- as strings: Redis prints a number slowly.
--
-- A function of the server is loaded once, and what is defined here stays from one
-- execution to the next: begin sets everything that belongs to one execution. A script
-- runs from its first line on every call.

local function num(n)
  return string.format('%d', n)
end

-- Of the partition.
local KEY -- of the marker
local T -- the prefix of all keys
local X -- zset: the live sessions and timed leases, by the instant they end
local N -- zset: the names of the locks that are held or waited for, except thin ones
local THIN -- zset: the thin locks
local LAST -- the greatest token so far, of all locks
local STREAM -- the name of the stream of events, while there is a watcher
local NEVER -- no such key exists

-- Of the process: the markers for which hello was called. nil in a script, which keeps
-- nothing from one call to the next.
local served

-- Of the execution.
local call, ARGV
local now, instant -- the time of the execution, as a number and as text
local clean -- nothing that has ended is still on record
local quarantine -- the client is granted nothing before this instant
local marker -- the parsed marker, once all of it is needed; see marker.lua
local till, longest, seen_at -- fields of the marker
local loss -- leases granted before this instant are from before a loss of writes; 0: none are
local watched -- the name of the stream of events, while there is a watcher
local full -- the memory of the server is full: nothing may be added
local answers -- 'OK', and then one for each operation
local asked, lives_until -- the session that was read last in this operation, and when it ends
local checked -- the lock that check read last in this operation
local met -- what takeone found on record of a lock that it could not take: see join

local function begin(keys, args, is_full)
  call, ARGV, full = redis.call, args, is_full
  if KEY ~= keys[1] then
    KEY = keys[1]
    T = string.sub(KEY, 1, -2)
    X, N, THIN, LAST, STREAM, NEVER = T .. 'x', T .. 'n', T .. 't', T .. 'f', T .. 'v', T .. '-'
  end
  local clock = call('TIME')
  now = clock[1] * 1000000 + clock[2]
  instant = num(now)
  loss, clean, quarantine, marker, till, longest, seen_at, watched = 0, true, 0, nil, nil, nil, nil, nil
  answers, asked, checked, met = {'OK'}, nil, nil, 0
end

local HOUR = 3600000000

local function foreign(key)
  error({err = 'HFFOREIGN ' .. key})
end

local LAG = 50000 -- us

local issued = {} -- the last token of each partition since hello, in this process

-- Reserve count new tokens, and return the first. Each is greater than every token before it, of any lock, and not far
-- behind the clock, so that tokens also grow when the last ones were lost, or the counter is an old copy. The first one
-- after hello is not behind it at all, nor is any in a script, which knows none before. The result is nil when the clock
-- is far behind the last token: then a token could not be trusted to grow after a loss.
local function tokens(count)
  local last = redis.pcall('INCRBY', LAST, count)
  if type(last) == 'table' then
    if string.find(last.err, 'overflow') then return nil end
    if string.find(last.err, '^WRONGTYPE') or string.find(last.err, 'integer') then foreign(LAST) end
    error(last)
  end
  if last > now + HOUR then return nil end
  local known = issued[LAST]
  local floor = known and math.max(known, now - LAG) or now
  if last - count < floor then
    last = math.max(now, floor) + count
    call('SET', LAST, num(last))
  end
  issued[LAST] = last
  return last - count + 1
end

-- The terms of acquire, which many leases have in common: see acquire.lua. They are one argument, because each has its
-- cost. A thin lock has its lease, the token and the time between head and tail.
local terms = {}

local function termsOf(text)
  if text ~= terms.text then
    local sid, ttl, limit, wait, mode, permits, chan, owner, note =
      string.match(text, '^([^\n]*)\n(%d+)\n(%d+)\n([01])\n([xs])\n(%d+)\n([^\n]*)\n([^\n]*)\n(.*)$')
    if not note then error({err = 'ERR the terms of an acquire'}) end
    terms = {text = text, sid = sid, ttl = tonumber(ttl), limit = tonumber(limit), wait = wait == '1', mode = mode,
      permits = tonumber(permits), chan = chan, owner = owner, note = note,
      head = '\n' .. sid .. '\nx\n' .. permits .. '\n', tail = '\n' .. ttl .. '\n-\n' .. chan .. '\n' .. owner .. '\n' .. note}
  end
  return terms
end

-- The short way takes and releases locks that have no other holder and no waiter, which is
-- almost always the case. It does exactly what acquire.lua and release.lua do, but for many
-- leases together: what they have in common is read and written once for all of them,
-- because each call of a command has its cost. A lease that needs more than that gets no
-- answer here, and takes the long way afterwards. The order does not matter, because the
-- leases done here are of different locks.

-- The first lease of each lock in an operation, as its position in ARGV, without those that
-- are done. The name of the lock stands there, and the ID of the lease after it.
local function apart(from, to, done)
  local those, names = {}, {}
  for i = from, to, 2 do
    local name = ARGV[i]
    if not names[name] and not (done and done[i]) then
      names[name] = true
      those[#those + 1] = i
    end
  end
  return those
end

-- A thin lock is one member of a zset: its name, the ID of its lease and the record of that
-- holder (see state.lua). It has one holder, an exclusive lease, and no waiter. A lease that
-- lives with its session is on record nowhere else, so that a client that knows the member
-- sends ZREM to release it, instead of a call of this program. A timed lease is a member of X
-- too. Whatever needs more than that inflates the lock first: see inflate. All scores are 0, so
-- the members are in the order of the names.
local function thin(name)
  return call('ZRANGEBYLEX', THIN, '[' .. name .. '\n', '(' .. name .. '\11', 'LIMIT', '0', '1')[1]
end

local function isthin(name)
  return call('ZLEXCOUNT', THIN, '[' .. name .. '\n', '(' .. name .. '\11') > 0
end

-- Those of the leases whose locks are free, and that were not released before they were
-- requested.
local function unheld(those)
  local keys = {}
  for k, i in ipairs(those) do
    local name = ARGV[i]
    keys[2 * k - 1], keys[2 * k] = T .. 'l:' .. name, T .. 'd:' .. ARGV[i + 1]
  end
  local some = call('EXISTS', unpack(keys)) > 0
  local free = {}
  if some and #those == 1 then return free end
  for k, i in ipairs(those) do
    if not (some and call('EXISTS', keys[2 * k - 1], keys[2 * k]) > 0) and not isthin(ARGV[i]) then
      free[#free + 1] = i
    end
  end
  return free
end

-- From now on the session ends at that instant. A key ends with it: whether that exists is known sooner than the reply
-- to ZSCORE, which takes Redis as long as all else that takeone reads.
local function prolong(sid, e)
  call('ZADD', X, num(e), 's:' .. sid)
  call('SET', T .. 'u:' .. sid, '', 'PX', num((e - now) / 1000))
end

-- From now on the session has no end on record: it does not live.
local function expire(sid)
  call('ZREM', X, 's:' .. sid)
  call('DEL', T .. 'u:' .. sid)
end

-- Whether the session lives. Without X, or with a foreign one, none does.
local function lives(sid)
  return call('ZCARD', X) > 0 and call('EXISTS', T .. 'u:' .. sid) == 1
end

-- When the session ends, if it lives. It is read once for an operation.
local function living(sid)
  if asked ~= sid then
    local e = call('ZSCORE', X, 's:' .. sid)
    asked, lives_until = sid, e and tonumber(e)
  end
  return lives_until and lives_until > now and lives_until
end

-- The arguments are those of acquire: see acquire.lua. Returns the leases that were
-- granted, the token of the first, and the time they have left.
local function take(i, n)
  local t = termsOf(ARGV[i])
  local ttl = t.ttl
  if t.mode ~= 'x' then return nil end -- it depends on the holders
  if ttl > 0 and (ttl > longest or now - seen_at > longest * 125) then return nil end -- the marker has to note the TTL
  if t.sid ~= '' and not lives(t.sid) then return nil end
  local those = unheld(apart(i + 1, i + n - 1))
  if #those == 0 then return nil end
  -- When the memory is full, this first write is refused. The writes after it never are.
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

local RELEASED = {'OK'}

-- The arguments are those of release: see release.lua. Releases the leases for which the
-- client sent the member of THIN, if they still are thin: then their position in ARGV is in done.
local function untake(i, n, done)
  for at = i + 2, i + n - 1, 2 do
    if ARGV[at + 1] == '' and call('ZREM', THIN, ARGV[at]) == 1 then done[at] = RELEASED end
  end
end

-- The arguments are those of release; done: see untake. Releases the timed leases of
-- thin locks, and returns them by their position in ARGV.
local function give(i, n, done)
  if ARGV[i] ~= '0' then return {} end -- it has to be remembered
  local those, members, lives = {}, {}, {}
  for _, at in ipairs(apart(i + 2, i + n - 1, done)) do
    local name, lease = ARGV[at], ARGV[at + 1]
    local member = thin(name)
    local mine = name .. '\n' .. lease .. '\n' .. ARGV[i + 1] .. '\n'
    if member and string.sub(member, 1, #mine) == mine and string.find(member, '^x\n%d+\n%d+\n%d+\n[1-9]', #mine + 1) then
      local m = #those + 1
      those[m], members[m], lives[m] = at, member, 't:' .. lease .. ':' .. name
    end
  end
  if #those == 0 then return those end
  call('ZREM', X, unpack(lives))
  call('ZREM', THIN, unpack(members))
  return those
end

local SUMMARY = '^(%d+) (%d) (%d+) (%d+) (%d+) (%d+) (%d+)$'

-- The middle way: one exclusive lease joins a queue that has waiters. It does what the long
-- way does when there is nothing else to do.
local function join(i, name, lease)
  local t = termsOf(ARGV[i])
  local sid = t.sid
  if t.ttl > 0 or not t.wait or t.mode ~= 'x' then return nil end
  local till = living(sid)
  local key, q, w = T .. 'l:' .. name, T .. 'q:' .. name, T .. 'w:' .. name
  local got = call('HMGET', key, '@', lease)
  if not till or not got[1] or got[2] then return nil end
  local n, x, used, shared, limit, queued, seq = string.match(got[1], SUMMARY)
  if not n or n == '0' or queued == '0' then return nil end
  local last = call('ZRANGE', q, '-1', '-1')[1]
  local recs = last and call('HMGET', w, last, lease)
  if not recs or not recs[1] or recs[2] then return nil end
  -- When takeone met one record, that is the lock.
  if met ~= 1 and call('EXISTS', T .. 'd:' .. lease) == 1 then return nil end
  -- How long until the waiter before it can end: see blocks.
  local before, timed, ttl = string.match(recs[1], '^([^\n]*)\n[xs]\n%d+\n%d+\n%d+\n([01])\n(%d+)\n')
  if not before then return nil end
  local ends = till
  if before ~= sid then
    local e = call('ZSCORE', X, 's:' .. before)
    ends = e and tonumber(e) or now
  end
  if ends > now + longest * 1000 then return nil end -- the clock went back
  if timed == '1' and now + ttl * 1000 < ends then ends = now + ttl * 1000 end
  local place = num(seq + 1)
  call('HSET', T .. 's:' .. sid, lease, name)
  call('ZADD', q, place, lease)
  call('HSET', w, lease, sid .. '\nx\n' .. t.permits .. '\n' .. t.limit .. '\n' .. instant .. '\n0\n0\n' .. t.chan .. '\n' .. t.owner .. '\n'
    .. t.note)
  call('HSET', key, '@', n .. ' ' .. x .. ' ' .. used .. ' ' .. shared .. ' ' .. limit .. ' ' .. num(queued + 1) .. ' ' .. place)
  if ends < now then ends = now end
  return {'WAIT', ends - now}
end

-- The middle way: the only lease that is held, an exclusive one, is released, and the lock
-- is handed over to the head of the queue, which is exclusive too.
local function pass(i, name, lease)
  if ARGV[i] ~= '0' then return nil end
  local sid = ARGV[i + 1]
  local key, q, w = T .. 'l:' .. name, T .. 'q:' .. name, T .. 'w:' .. name
  local got = call('HMGET', key, '@', lease)
  local rec = got[2]
  if not rec or string.sub(rec, 1, #sid + 1) ~= sid .. '\n' then return nil end
  local shared, limit, queued, seq = string.match(got[1] or '', '^1 1 0 (%d+) (%d+) (%d+) (%d+)$')
  if not queued or queued == '0' then return nil end
  if not string.find(rec, '^[^\n]*\nx\n%d+\n%d+\n%d+\n0\n') then return nil end -- it is timed
  local next = call('ZRANGE', q, '0', '0')[1]
  local waits = next and call('HGET', w, next)
  local who, permits, chan, rest
  if waits then
    who, permits, chan, rest = string.match(waits, '^([^\n]*)\nx\n(%d+)\n%d+\n%d+\n0\n%d+\n([^\n]*)\n(.*)$')
  end
  if not who or not lives(who) then return nil end
  call('HDEL', T .. 's:' .. sid, lease)
  local token = tokens(1)
  if not token then return nil end
  token = num(token)
  call('ZREM', q, next)
  call('HDEL', w, next)
  call('HSET', key, '@', '1 1 0 ' .. shared .. ' ' .. limit .. ' ' .. num(queued - 1) .. ' ' .. seq, next,
    who .. '\nx\n' .. permits .. '\n' .. token .. '\n' .. instant .. '\n0\nw\n' .. chan .. '\n' .. rest)
  -- The lease is released, whether the notification is refused or not: see publish.
  call('HDEL', key, lease)
  if chan ~= '' then pcall(call, 'PUBLISH', chan, 'g\n' .. next .. '\n' .. token .. '\n' .. instant .. '\n0') end
  return {'OK'}
end

-- The long way: the files from here to main.lua. A script defines its functions only when
-- one of them is needed: defining them costs more than the short way of an operation.
local function define()
