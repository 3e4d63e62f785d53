-- Acquire: the one call that takes the lock, or joins the queue.

-- Whether the lease was granted before a restart or a promotion that may have lost writes. It
-- may have been released or broken since, and the lock granted to another client, which was
-- lost with that. So the record only keeps others away until it ends.
local function stale(c)
  if not string.find(marker.generation, '%.[rp]$') then return false end
  return c.since < marker.born or c.since > now
end

-- The answer G token since left flag fresh for a request under that session: the lease is held. left
-- is 0 for a lease that lives with its session; a request under another one has lost it. fresh: 1
-- when it was granted just now.
local function granted(l, lease, c, sid)
  if stale(c) or c.ttl == 0 and c.sid ~= sid then return {'LOST'} end
  local rest = 0
  if c.ttl > 0 then
    rest = (ends(life(l.name, lease, c)) or now) - now
    if rest <= 0 then return {'LOST'} end
  end
  return {'G', c.token, c.since, rest, c.flag, c.since == now and 1 or 0}
end

local SHOWN = 16 -- holders that a refusal names

-- A lease as people are shown it. left is the time that a holder has left, nil for a waiter.
local function shown(lease, c, left)
  return {lease, left and c.ttl > 0 and '' or c.sid, c.mode, c.permits, c.token, c.since, left or 0, c.owner, c.note}
end

-- The holders that have time left.
local function present(l, most)
  local r = {}
  local some = most > 0 and l.n > MANY
  for lease, c in holders(l, some and call('HRANDFIELD', l.key, most + 1, 'WITHVALUES')) do
    local e = expiry(l.name, lease, c)
    if e > now then
      r[#r + 1] = shown(lease, c, e - now)
      if #r == most then break end
    end
  end
  return r
end

-- The refusal during a quarantine, with its reason: see marker.lua. nil: it has ended.
local function refused(ends)
  if ends <= now then return nil end
  return {'QUARANTINE', ends - now, string.match(marker.generation, '%.(%a)$') or '-'}
end

-- The answer to a request that does not wait, with so many in the queue ahead of it. Without
-- holders the queue would have moved, but for the quarantine or the clock.
local function turned(l, ahead)
  if l.n == 0 then return refused(marker.till) or {'CLOCK'} end
  return {'HELD', ahead, present(l, SHOWN), l.n}
end

-- The place of a waiter is that of another session, or of another Backend, from now on.
local function adopt(l, lease, w, sid, chan)
  if sid ~= w.sid then
    call('HDEL', T .. 's:' .. w.sid, lease)
    call('HSET', T .. 's:' .. sid, lease, l.name)
    push(w.chan, 'a', lease, sid)
  end
  w.sid, w.chan = sid, chan
  call('HSET', l.w, lease, cmsgpack.pack(w))
  local next = behind(l, lease)
  if next then nudge(l, next) end
end

-- The answer for a lease that is held or queued already. nil: it is neither. It also advances the
-- queue, if possible.
local function again(l, c, lease, sid, wait, chan)
  if c then return granted(l, lease, c, sid) end
  local w = inline(l, lease)
  if not w then return nil end
  -- A request that does not wait may have no session, and has no channel: the lease keeps
  -- those that it waits with.
  if sid == '' then sid = w.sid end
  if chan == '' then chan = w.chan end
  if sid ~= w.sid or chan ~= w.chan then
    if not alive(sid) then return {'SESSION'} end
    adopt(l, lease, w, sid, chan)
  end
  advance(l)
  save(l)
  c = held(l, lease)
  if c then return granted(l, lease, c, sid) end
  local rank, ahead = before(l, lease)
  if not rank then return {'SESSION'} end
  if not wait then return turned(l, rank) end
  return {'WAIT', left(l, ahead)}
end

-- acquire terms (name lease)... The terms are sid, ttl, limit, wait, mode, permits, channel, owner and note, a line each.
-- ttl is 0 for leases that live with their session. An answer for each:
-- -> G... | WAIT left | HELD ahead holders count | LOST | SESSION | LIMIT limit | QUARANTINE left reason | CLOCK
-- No new waiter joins the queue in the quarantine of its client: another client may release the
-- lock. The caller gets QUARANTINE, and retries.
local function acquire(i, name, lease)
  local t = termsOf(ARGV[i])
  local sid, limit, wait, mode = t.sid, t.limit, t.wait, t.mode
  local l, c = open(name, lease)
  if c or l.queued > 0 then
    local r = again(l, c, lease, sid, wait, t.chan)
    if r then return r end
  end
  if call('EXISTS', T .. 'd:' .. lease) == 1 then return {'LOST'} end
  if sid ~= '' and not alive(sid) then return {'SESSION'} end
  if mode == 's' and l.shared > 0 and l.limit ~= limit then return {'LIMIT', l.limit} end
  if l.queued > 0 and (not clean or l.n == 0) then
    advance(l) -- the quarantine may have ended, or waiters may be dead
    save(l) -- whatever becomes of this request
  end
  c = {sid = sid, mode = mode, permits = t.permits, limit = limit, ttl = t.ttl, since = now, token = 0, flag = '-',
    chan = t.chan, owner = t.owner, note = t.note}
  local free = l.queued == 0 and fits(l, mode, t.permits, limit)
  if free or wait or l.n == 0 then
    local no = refused(quarantine)
    if no then
      save(l)
      return no
    end
  end
  if full and (free or wait) then crowded() end
  local token = free and tokens('1')
  if free and not token then return {'CLOCK'} end
  if not free and not wait then
    save(l)
    return turned(l, l.queued)
  end
  enforce(l, mode, limit)
  if c.ttl > 0 then note(c.ttl) end
  if not free or c.ttl == 0 then call('HSET', T .. 's:' .. sid, lease, name) end
  if free then
    grant(l, lease, c, token)
    save(l)
    return {'G', token, now, c.ttl * 1000, c.flag}
  end
  local rest = left(l, l.queued > 0 and queued(l, at(l, -1)))
  l.seq = l.seq + 1
  l.queued = l.queued + 1
  call('ZADD', l.q, num(l.seq), lease)
  call('HSET', l.w, lease, cmsgpack.pack(c))
  event('waiting', name, lease, c)
  save(l)
  return {'WAIT', rest}
end

-- check sid (name lease)... An answer for each: -> G... | WAIT left | SESSION | LOST | CLOCK. What became of leases that
-- wait. The alarms of all waiters of a lock that one process has ring together, so what the answers have in common is read
-- once, and the rest of each costs three commands.
local function check(i, name, lease)
  local sid = ARGV[i]
  local l = checked
  if not l or l.name ~= name then
    l = open(name)
    advance(l)
    save(l)
    l.blocked, checked = {}, l
  end
  local rank = l.queued > 0 and call('ZRANK', l.q, lease)
  if not rank then
    local c = held(l, lease)
    return c and granted(l, lease, c, sid) or {alive(sid) and 'LOST' or 'SESSION'}
  end
  local recs = call('HMGET', l.w, lease, rank > 0 and at(l, rank - 1) or lease)
  if not recs[1] then foreign(l.w) end
  if claim(recs[1]).sid ~= sid then return {'LOST'} end -- another session has the place
  if not clean and not alive(sid) then return {'SESSION'} end
  if l.n == 0 and marker.till <= now then return {'CLOCK'} end -- the queue would have moved
  return {'WAIT', left(l, rank > 0 and claim(recs[2]))}
end
