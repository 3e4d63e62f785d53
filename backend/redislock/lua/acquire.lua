-- Acquire: the one call that takes the lock, or joins the queue.

-- Whether the lease was granted before a restart or a promotion that may have lost writes. It
-- may have been released or broken since, and the lock granted to another client, which was
-- lost with that. So the record only keeps others away until it ends.
local function stale(h)
  local since = tonumber(h.since)
  return loss > 0 and (since < loss or since > now)
end

-- The answer G token since left flag fresh for a request under that session: the lease is held. left
-- is 0 for a lease that lives with its session; a request under another one has lost it. fresh: 1
-- when it was granted just now.
local function granted(l, lease, h, sid)
  if stale(h) or not h.timed and h.sid ~= sid then return {'LOST'} end
  local rest = 0
  if h.timed then
    rest = (ends(life(l.name, lease, h)) or now) - now
    if rest <= 0 then return {'LOST'} end
  end
  return {'G', tonumber(h.token), tonumber(h.since), rest, h.flag, h.since == instant and 1 or 0}
end

local SHOWN = 16 -- holders that a refusal names

-- The holders that have time left, each as lease, record and time left.
local function holders(l, most)
  local r = {}
  local some = most > 0 and l.n > MANY
  local all = some and call('HRANDFIELD', l.key, most + 1, 'WITHVALUES') or call('HGETALL', l.key)
  for i = 1, #all, 2 do
    if all[i] ~= '@' then
      local e = expiry(l.name, all[i], holder(all[i + 1]))
      if e > now then
        r[#r + 1] = {all[i], all[i + 1], e - now}
        if #r == most then break end
      end
    end
  end
  return r
end

-- The refusal during a quarantine, with its reason: see marker.lua. nil: it has ended.
local function refused(ends)
  if ends <= now then return nil end
  marker = marker or parse(call('GET', KEY))
  return {'QUARANTINE', ends - now, string.match(marker.generation, '%.(%a)$') or '-'}
end

-- The answer to a request that does not wait, with so many in the queue ahead of it. Without
-- holders the queue would have moved, but for the quarantine or the clock.
local function turned(l, ahead)
  if l.n == 0 then return refused(till) or {'CLOCK'} end
  return {'HELD', ahead, holders(l, SHOWN), l.n}
end

-- The place of a waiter is that of another session, or of another Backend, from now on.
local function adopt(l, lease, w, sid, chan)
  if sid ~= w.sid then
    call('HDEL', T .. 's:' .. w.sid, lease)
    call('HSET', T .. 's:' .. sid, lease, l.name)
    push(w.chan, 'a', lease, sid)
  end
  call('HSET', l.w, lease, table.concat({sid, w.mode, w.permits, w.limit, w.since, w.timed and '1' or '0', w.ttl, chan,
    w.owner, w.note}, '\n'))
  local next = behind(l, lease)
  if next then nudge(l, next) end
end

-- The answer for a lease that is held or queued already. nil: it is neither. It also advances the
-- queue, if possible.
local function again(l, rec, lease, sid, wait, chan)
  if rec then return granted(l, lease, holder(rec), sid) end
  local w = inline(l, lease)
  if not w then return nil end
  -- A request that does not wait may have no session, and has no channel: the lease keeps
  -- those that it waits with.
  if sid == '' then sid = w.sid end
  if chan == '' then chan = w.chan end
  if sid ~= w.sid or chan ~= w.chan then
    if not alive('s:' .. sid) then return {'SESSION'} end
    adopt(l, lease, w, sid, chan)
  end
  advance(l)
  save(l)
  rec = call('HGET', l.key, lease)
  if rec then return granted(l, lease, holder(rec), sid) end
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
  local sid, ttl, limit, wait, mode, permits, chan, owner = t.sid, t.ttl, t.limit, t.wait, t.mode, t.permits, t.chan, t.owner
  local timed = ttl > 0
  local l, rec = open(name, lease)
  if rec or l.queued > 0 then
    local r = again(l, rec, lease, sid, wait, chan)
    if r then return r end
  end
  if call('EXISTS', T .. 'd:' .. lease) == 1 then return {'LOST'} end
  if sid ~= '' and not alive('s:' .. sid) then return {'SESSION'} end
  if mode == 's' and l.shared > 0 and l.limit ~= limit then return {'LIMIT', l.limit} end
  if l.queued > 0 and (not clean or l.n == 0) then
    advance(l) -- the quarantine may have ended, or waiters may be dead
    save(l) -- whatever becomes of this request
  end
  local h = {sid = sid, mode = mode, permits = permits, since = num(now), timed = timed, flag = '-', chan = chan,
    owner = owner, note = t.note}
  local free = l.queued == 0 and fits(l, mode, permits, limit)
  if free or wait or l.n == 0 then
    local no = refused(quarantine)
    if no then
      save(l)
      return no
    end
  end
  if full and (free or wait) then crowded() end
  if free then
    local token = tokens(1)
    if not token then return {'CLOCK'} end
    h.token = num(token)
  elseif not wait then
    save(l)
    return turned(l, l.queued)
  end
  enforce(l, mode, limit)
  if timed then note(ttl) end
  if h.token then
    if not timed then call('HSET', T .. 's:' .. sid, lease, name) end
    grant(l, lease, h, ttl)
    save(l)
    return {'G', tonumber(h.token), now, timed and ttl * 1000 or 0, h.flag}
  end
  local rest = left(l, l.queued > 0 and call('HGET', l.w, call('ZRANGE', l.q, -1, -1)[1]))
  call('HSET', T .. 's:' .. sid, lease, name)
  l.seq = l.seq + 1
  l.queued = l.queued + 1
  call('ZADD', l.q, l.seq, lease)
  call('HSET', l.w, lease, table.concat({sid, mode, permits, limit, num(now), timed and '1' or '0', ttl, chan, owner, t.note}, '\n'))
  event('waiting', name, lease, h)
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
    local rec = call('HGET', l.key, lease)
    return rec and granted(l, lease, holder(rec), sid) or {alive('s:' .. sid) and 'LOST' or 'SESSION'}
  end
  local recs = call('HMGET', l.w, lease, rank > 0 and call('ZRANGE', l.q, rank - 1, rank - 1)[1] or lease)
  if not recs[1] then foreign(l.w) end
  if waiter(recs[1]).sid ~= sid then return {'LOST'} end -- another session has the place
  if not clean and not alive('s:' .. sid) then return {'SESSION'} end
  if l.n == 0 and till <= now then return {'CLOCK'} end -- the queue would have moved
  return {'WAIT', left(l, rank > 0 and recs[2])}
end
