local TOMB_TTL = 300000 -- ms, at least

-- The error that a server gives a script that needs more memory than there is.
local function crowded()
  error({err = 'OOM the memory is full'})
end

-- When the session, or the timed lease, ends; false when it is not on record.
local function ends(member)
  local s = call('ZSCORE', X, member)
  return s and tonumber(s)
end

-- The same, corrected when the clock went back. No session has more time left than its TTL,
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
  if not full then prolong(sid, e) end
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

local function alive(member)
  local s = ends(member)
  return s ~= nil and s ~= false and s > now
end

-- The record of a holder, and of a waiter, is its fields joined by newlines. The texts hold
-- no control characters: the client ensures that.
--   holder: session mode permits token since ttl flag channel owner note
--           ttl is that of a timed lease in ms, 0 for a lease that lives with its session
--   waiter: session mode permits limit since timed ttl channel owner note
local F = '([^\n]*)\n'
local RECORD = '^' .. string.rep(F, 9) .. '(.*)$'

local function holder(rec)
  local sid, mode, permits, token, since, ttl, flag, chan, owner, note = string.match(rec, RECORD)
  if not sid then foreign('holder') end
  return {sid = sid, mode = mode, permits = tonumber(permits), token = token, since = since, timed = ttl ~= '0',
    ttl = tonumber(ttl), flag = flag, chan = chan, owner = owner, note = note}
end

local function waiter(rec)
  local sid, mode, permits, limit, since, timed, ttl, chan, owner, note = string.match(rec, RECORD)
  if not sid then foreign('waiter') end
  return {sid = sid, mode = mode, permits = tonumber(permits), limit = tonumber(limit), since = since, timed = timed == '1',
    ttl = tonumber(ttl), chan = chan, owner = owner, note = note}
end

-- The member of X that a holder lives by.
local function life(name, lease, h)
  return h.timed and 't:' .. lease .. ':' .. name or 's:' .. h.sid
end

-- When a holder ends. What it lives by may be gone from the records: then it has ended.
local function expiry(name, lease, h)
  return lasts(life(name, lease, h)) or now
end

-- The parts of a thin lock: its name, the ID of its lease, and the record of that holder.
local function parts(member)
  local name, lease, rec = string.match(member, '^([^\n]*)\n([^\n]*)\n(.*)$')
  if not lease then foreign(THIN) end
  return name, lease, rec
end

-- Whether a thin lock is held. A session does not know of its thin leases. When all else of it
-- is gone, it has ended and been removed, and so have they.
local function genuine(name, lease, h)
  if h.timed then return ends(life(name, lease, h)) end
  return call('EXISTS', T .. 's:' .. h.sid) == 1
end

-- Convert a lock to a hash if it is thin. Returns whether there is one now.
local function inflate(name, key)
  local member = thin(name)
  if not member then return false end
  local _, lease, rec = parts(member)
  local h = holder(rec)
  call('ZREM', THIN, member) -- first: it is allowed when the memory is full
  if not genuine(name, lease, h) then return false end
  call('HSET', key, '@', '1 1 0 0 0 0 0', lease, rec)
  if not h.timed then call('HSET', T .. 's:' .. h.sid, lease, name) end
  call('ZADD', N, 0, name)
  return true
end

-- A lock. Its summary, field '@' of its hash, saves reading all of it:
--   n      leases held         x     1 when they are exclusive
--   used   permits held        queued waiters in the queue
--   shared shared claims, held and queued, and limit, the limit they all have
--   seq    the place that the last waiter got
-- With lease set, the record of that holder is read with it.
local function lock(name, lease)
  local key = T .. 'l:' .. name
  local got = call('HMGET', key, '@', lease or '@')
  if not got[1] and inflate(name, key) then got = call('HMGET', key, '@', lease or '@') end
  local l = {name = name, key = key, q = T .. 'q:' .. name, w = T .. 'w:' .. name,
    n = 0, x = 0, used = 0, shared = 0, limit = 0, queued = 0, seq = 0, summary = got[1]}
  if got[1] then
    local n, x, used, shared, limit, queued, seq =
      string.match(got[1], SUMMARY)
    if not n then foreign(key) end
    l.n, l.x, l.used, l.shared = tonumber(n), tonumber(x), tonumber(used), tonumber(shared)
    l.limit, l.queued, l.seq = tonumber(limit), tonumber(queued), tonumber(seq)
  end
  return l, lease and got[2]
end

-- Write the summary back, or delete the records of the lock when it has no holder and no
-- waiter.
local function save(l)
  local known = l.summary
  if l.n == 0 and l.queued == 0 then
    if known then
      call('DEL', l.key)
      call('ZREM', N, l.name)
      l.summary = nil
    end
    return
  end
  l.summary = string.format('%d %d %d %d %d %d %d', l.n, l.x, l.used, l.shared, l.limit, l.queued, l.seq)
  if l.summary ~= known then call('HSET', l.key, '@', l.summary) end
  if not known then call('ZADD', N, 0, l.name) end
end

-- A notification may be refused: the user may lack the permission for the channel. That must
-- not end the operation, whose writes would stay incomplete. A lost notification costs a timer.
local function publish(chan, text)
  pcall(call, 'PUBLISH', chan, text)
end

local function event(kind, name, lease, h, reason)
  if watched then
    publish(T .. 'e:' .. watched, table.concat({kind, name, lease, h.owner, h.mode, h.token or '0', num(now), reason or ''}, '\n'))
  end
end

local function push(chan, ...)
  if chan ~= '' then
    publish(chan, table.concat({...}, '\n'))
  end
end
