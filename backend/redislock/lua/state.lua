-- The long way: the files from here to main.lua. A script defines its functions only when
-- one of them is needed: defining them costs more than the short way of an operation.
local function define()

local TOMB_TTL = 300000 -- ms, at least

-- The error that a server gives a script that needs more memory than there is.
local function crowded()
  error({err = 'OOM the memory is full'})
end

-- From now on the session ends at that instant: see lives.
local function prolong(sid, e)
  call('ZADD', X, num(e), 's:' .. sid)
  call('SET', T .. 'u:' .. sid, '', 'PXAT', num(e / 1000 - 1)) -- it is there until this millisecond has passed
end

-- From now on the session has no end on record: it does not live.
local function expire(sid)
  call('ZREM', X, 's:' .. sid)
  call('DEL', T .. 'u:' .. sid)
end

-- When the session, or the timed lease, ends; false when it is not on record.
local function ends(member)
  local s = call('ZSCORE', X, member)
  return s and tonumber(s)
end

-- Whether a session lives, by the instant that is on record, on which all else rests.
local function alive(sid)
  local e = ends('s:' .. sid)
  return e and e > now
end

-- When it ends, corrected when the clock went back. No session has more time left than its TTL,
-- unless the clock went back since it was renewed. Then it has its TTL from now on:
-- otherwise a session whose client is dead would last until the clock has caught up. A timed
-- lease is not corrected, because the time that it may have left is not on record.
local function lasts(member)
  local e = ends(member)
  local sid = e and string.match(member, '^s:(.*)$')
  local rec = sid and call('HGET', T .. 's:' .. sid, '@')
  local ttl = rec and string.match(rec, '^(%d+) ')
  if not ttl or e <= now + ttl * 1000 then return e end
  e = now + ttl * 1000
  prolong(sid, e)
  return e
end

-- A session: ttl (ms), ended, off, channel. off: its client has no quarantine.
local function session(sid)
  local rec = call('HGET', T .. 's:' .. sid, '@')
  if not rec then return {ttl = 0, chan = ''} end
  local ttl, state, chan = string.match(rec, '^(%d+) ([012]) (.*)$')
  if not ttl then foreign('session') end
  return {ttl = tonumber(ttl), ended = state == '1', off = state == '2', chan = chan}
end

-- What a lease claims, or was granted:
--   sid, chan    its session, and the channel of its client; owner, note: what people are shown
--   mode, permits, limit  'x' or 's', how many it takes, and of how many; see backend.Claim
--   ttl          that of a timed lease in ms, 0 for a lease that lives with its session
--   since        when it was granted, or queued
--   token, flag  of a holder; flag: 'w' it waited, '-' it did not
-- Of a thin lock it is text, which its client knows: see parts. Elsewhere it is packed.
local function claim(packed)
  local ok, c = pcall(cmsgpack.unpack, packed)
  if not ok or type(c) ~= 'table' or not c.sid then foreign('lease') end
  return c
end

-- The member of X that a holder lives by.
local function life(name, lease, c)
  return c.ttl > 0 and 't:' .. lease .. ':' .. name or 's:' .. c.sid
end

-- When a holder ends. If what it lives by is not on record, it has ended.
local function expiry(name, lease, c)
  return lasts(life(name, lease, c)) or now
end

-- The parts of a thin lock: its name, the ID of its lease, and the claim of that holder.
local function parts(member)
  local name, lease, sid, permits, token, since, ttl, chan, owner, note = string.match(member,
    '^([^\n]*)\n([^\n]*)\n([^\n]*)\nx\n(%d+)\n(%d+)\n(%d+)\n(%d+)\n%-\n([^\n]*)\n([^\n]*)\n(.*)$')
  if not note then foreign(THIN) end
  return name, lease, {sid = sid, mode = 'x', permits = tonumber(permits), limit = 0, ttl = tonumber(ttl),
    since = tonumber(since), token = tonumber(token), flag = '-', chan = chan, owner = owner, note = note}
end

local SUMMARY = '<I4I1I4I4I4I4d' -- packed: to read numbers from text takes longer than all else here

-- A lock as it is on record, in either form. Operations change it, and then call save. Its summary, field '@' of its hash,
-- saves reading all of it:
--   n      leases held         x     1 when they are exclusive
--   used   permits held        queued waiters in the queue
--   shared shared claims, held and queued, and limit, the limit they all have
--   seq    the place that the last waiter got
-- Of a thin lock, thin is the member, and lease and claim are those of its holder.
-- With lease set, the claim of that holder is returned, too, or nil if it holds nothing.
local function lock(name, lease)
  local key = T .. 'l:' .. name
  local l = {name = name, key = key, q = T .. 'q:' .. name, w = T .. 'w:' .. name,
    n = 0, x = 0, used = 0, shared = 0, limit = 0, queued = 0, seq = 0}
  local got = call('HMGET', key, '@', lease or '@')
  if got[1] then
    if #got[1] ~= struct.size(SUMMARY) then foreign(key) end
    l.n, l.x, l.used, l.shared, l.limit, l.queued, l.seq = struct.unpack(SUMMARY, got[1])
    l.summary = got[1]
    return l, lease and got[2] and claim(got[2]) or nil
  end
  local member = thin(name)
  if not member then return l end
  local _, id, c = parts(member)
  if not ends(life(name, id, c)) then -- it has ended and been removed
    call('ZREM', THIN, member)
    return l
  end
  l.n, l.x, l.summary = 1, 1, struct.pack(SUMMARY, 1, 1, 0, 0, 0, 0, 0)
  l.thin, l.lease, l.claim = member, id, c
  return l, id == lease and c or nil
end

-- The claim of a lease in a hash, else nil.
local function stored(key, lease)
  local packed = call('HGET', key, lease)
  return packed and claim(packed) or nil
end

-- The claim of the lease if it is held, else nil.
local function held(l, lease)
  if l.thin then return lease == l.lease and l.claim or nil end
  return stored(l.key, lease)
end

-- The claim of a waiter, else nil.
local function queued(l, lease)
  return stored(l.w, lease)
end

-- The holders, as pairs of lease and claim: all of them, or those fields of the hash. A record that cannot be read is an
-- error: read all that is needed before anything is changed.
local function holders(l, fields)
  local i, all = -1, fields or l.thin and {l.lease, l.claim} or call('HGETALL', l.key)
  return function()
    i = i + 2
    if all[i] == '@' then i = i + 2 end
    local c = all[i + 1]
    if c then return all[i], l.thin and c or claim(c) end
  end
end

-- Make a hash of a thin lock.
local function inflate(l)
  call('ZREM', THIN, l.thin)
  call('HSET', l.key, '@', l.summary, l.lease, cmsgpack.pack(l.claim))
  if l.claim.ttl == 0 then call('HSET', T .. 's:' .. l.claim.sid, l.lease, l.name) end
  call('ZADD', N, '0', l.name)
  l.thin = nil
end

-- Write the summary back, or delete the records of the lock when it has no holder and no
-- waiter.
local function save(l)
  local known = l.summary
  if l.n == 0 and l.queued == 0 then
    if l.thin then
      call('ZREM', THIN, l.thin)
    elseif known then
      call('DEL', l.key)
      call('ZREM', N, l.name)
    end
    l.thin, l.summary = nil, nil
    return
  end
  l.summary = struct.pack(SUMMARY, l.n, l.x, l.used, l.shared, l.limit, l.queued, l.seq)
  if l.summary == known then return end
  if l.thin then return inflate(l) end
  call('HSET', l.key, '@', l.summary)
  if not known then call('ZADD', N, '0', l.name) end
end

-- A notification may be refused: the user may lack the permission for the channel. That must
-- not end the operation, whose writes would stay incomplete. A lost notification costs a timer.
local function publish(chan, text)
  pcall(call, 'PUBLISH', chan, text)
end

local function event(kind, name, lease, c, reason)
  if watched then
    publish(T .. 'e:' .. watched, table.concat({kind, name, lease, c.owner, c.mode, num(c.token), instant, reason or ''}, '\n'))
  end
end

local function push(chan, ...)
  if chan ~= '' then
    publish(chan, table.concat({...}, '\n'))
  end
end
