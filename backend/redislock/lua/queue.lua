-- The queue: which claim fits, which waiter is next, which client is notified.

-- Whether the claim may be held together with those that are: backend.Claim.Fits.
local function fits(l, mode, permits, limit)
  if l.n == 0 then return true end
  if mode == 'x' or l.x == 1 then return false end
  return limit == 0 or l.used + permits <= limit
end

-- enforce counts a shared claim that comes into force, relax one that is no longer in force:
-- backend.LimitInForce.
local function enforce(l, mode, limit)
  if mode == 's' then
    l.shared = l.shared + 1
    l.limit = limit
  end
end

local function relax(l, mode)
  if mode == 's' then
    l.shared = l.shared - 1
    if l.shared == 0 then l.limit = 0 end
  end
end

-- Record a lease as held. Its claim is in force already.
local function grant(l, lease, c, token)
  c.token, c.since = token, now
  l.n = l.n + 1
  if c.mode == 'x' then
    l.x = 1
  else
    l.used = l.used + c.permits
  end
  call('HSET', l.key, lease, cmsgpack.pack(c))
  if c.ttl > 0 then call('ZADD', X, num(now + c.ttl * 1000), life(l.name, lease, c)) end
  event('acquired', l.name, lease, c)
end

-- Remove a lease that is held.
local function withdraw(l, lease, c)
  if c.ttl > 0 then
    call('ZREM', X, life(l.name, lease, c))
  elseif not l.thin then
    call('HDEL', T .. 's:' .. c.sid, lease)
  end
  l.n = l.n - 1
  if l.n > 0 or l.queued > 0 then -- otherwise save deletes the whole record
    call('HDEL', l.key, lease)
  end
  if c.mode == 's' then
    l.used = l.used - c.permits
  elseif l.n == 0 then
    l.x = 0
  end
  relax(l, c.mode)
end

-- Remove a waiter from the queue, whether it is granted or not.
local function unqueue(l, lease)
  call('ZREM', l.q, lease)
  call('HDEL', l.w, lease)
  l.queued = l.queued - 1
end

-- A waiter leaves without a grant. why: 'S' its session is lost, 'L' it was released.
local function drop(l, lease, w, why)
  unqueue(l, lease)
  call('HDEL', T .. 's:' .. w.sid, lease)
  relax(l, w.mode)
  push(w.chan, 'd', lease, why)
  event('left', l.name, lease, w)
end

-- The instant until which a waiter surely blocks those behind it, whether it keeps waiting
-- or is granted: the end of its session, or for a timed lease its TTL from now if that is
-- earlier.
local function blocks(l, w)
  local known = l.blocked or {}
  local e = known[w.sid] or lasts('s:' .. w.sid) or now
  known[w.sid] = e
  return w.ttl > 0 and math.min(e, now + w.ttl * 1000) or e
end

local MANY = 64 -- more holders than this are not read one by one
local COARSE = 500000 -- us

-- The first instant at which a lease that is held can end. With many holders it is the first end
-- of anything in the partition, but at least COARSE from now: otherwise the ends of other locks'
-- leases would make a waiter send requests all the time.
local function earliest(l)
  if l.n > MANY then
    local first = call('ZRANGE', X, '0', '0', 'WITHSCORES')[2]
    return math.max(tonumber(first) or now, now + COARSE)
  end
  if l.n == 0 then return now end
  local min
  for lease, c in holders(l) do
    local e = expiry(l.name, lease, c)
    min = math.min(min or e, e)
  end
  return min or now
end

-- How long until something that stands before a waiter can end, in us. ahead is the waiter
-- right before it, nil for the head of the queue.
local function left(l, ahead)
  local e = ahead and blocks(l, ahead) or earliest(l)
  if marker.till > now and (l.n == 0 or marker.till < e) then e = marker.till end
  return math.max(e - now, 0)
end

-- The lease at a place in the queue, from 0. A negative place counts from the end.
local function at(l, place)
  place = num(place)
  return call('ZRANGE', l.q, place, place)[1]
end

-- The place of a lease in the queue, from 0, and the waiter right before it.
local function before(l, lease)
  local rank = call('ZRANK', l.q, lease)
  if not rank or rank == 0 then return rank end
  return rank, queued(l, at(l, rank - 1))
end

local function remind(l, lease)
  if l.queued == 0 then return end
  lease = lease or at(l, 0)
  local rank, ahead = before(l, lease)
  local w = rank and queued(l, lease)
  if w then push(w.chan, 't', lease, num(left(l, ahead))) end
end

-- Notify the client of a waiter how long its timer may be, because what it knew of those
-- before it is no longer true. Without a lease: of the waiter at the head of the queue. A
-- record that cannot be read prevents the notification, and nothing else.
local function nudge(l, lease)
  pcall(remind, l, lease)
end

-- The waiter right behind a lease in the queue.
local function behind(l, lease)
  local rank = call('ZRANK', l.q, lease)
  return rank and at(l, rank + 1)
end

-- Call f, which may fail. Earlier changes of the lock are saved all the same.
local function intact(l, f, ...)
  local ok, r = pcall(f, ...)
  if not ok then
    save(l)
    error(r, 0)
  end
  return r
end

-- Grant to the head of the queue for as long as it fits: backend.Admit. A waiter whose
-- session has ended is dropped when it gets to the head. Each grant is one notification.
-- No client waits in a queue during its own quarantine, but one may find out later that longer
-- leases were in use. Then no waiter is granted the lock until these have ended, whichever
-- client calls, except one whose client has no quarantine.
-- changed: leases were removed, so that what the head of the queue knew may no longer hold.
local function advance(l, changed)
  local granted = 0
  while l.queued > 0 do
    local lease = at(l, 0)
    local w = lease and intact(l, queued, l, lease)
    if not w then
      save(l)
      foreign(l.q)
    end
    if not alive(w.sid) then
      drop(l, lease, w, 'S')
      changed = true
    elseif marker.till > now and not intact(l, session, w.sid).off then
      break
    elseif not fits(l, w.mode, w.permits, w.limit) then
      break
    else
      if w.ttl > 0 then intact(l, note, w.ttl) end -- it may have been forgotten since the lease was queued
      local t = intact(l, tokens, '1')
      if not t then break end
      unqueue(l, lease)
      if w.ttl > 0 then call('HDEL', T .. 's:' .. w.sid, lease) end
      w.flag = 'w'
      grant(l, lease, w, t)
      push(w.chan, 'g', lease, num(t), instant, w.ttl > 0 and '1' or '0')
      granted = granted + 1
      if l.x == 1 then break end -- nothing fits beside it
    end
  end
  -- The timer of the new head was set for the waiter before it. When that one is now the
  -- only holder, the timer is still right, and no notification is needed.
  if l.queued > 0 and (changed or granted > 0) and not (granted == 1 and l.n == 1) then
    nudge(l)
  end
end

-- A lease that is held ends, and the lock is handed over. kind is that of the event.
local function vacate(l, lease, c, kind)
  withdraw(l, lease, c)
  event(kind, l.name, lease, c)
  advance(l, true)
  save(l)
end

-- A waiter leaves the queue without a grant: see drop. Those behind it move up.
local function quit(l, lease, w, why)
  local next = behind(l, lease)
  drop(l, lease, w, why)
  advance(l)
  if next then nudge(l, next) end
  save(l)
end
