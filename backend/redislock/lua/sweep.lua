-- The sweep removes what has ended from the records, a bounded number at each call, and
-- hands the locks over to waiters. A call that leaves some of it removes what has ended from
-- its own lock by itself (purge): no decision is ever based on what has ended. A record that
-- cannot be read is left as it is: nothing is granted on it, and other locks are not
-- affected.

-- Remove a lease, or a waiter, of a session that has ended.
local function orphan(name, lease, sid, ended)
  local l, rec = lock(name, lease)
  local h = rec and holder(rec)
  if h and not h.timed and h.sid == sid then
    vacate(l, lease, h, ended and 'released' or 'expired')
    return
  end
  rec = l.queued > 0 and call('HGET', l.w, lease)
  local w = rec and waiter(rec)
  if w and w.sid == sid then
    quit(l, lease, w, 'S')
    return
  end
  call('HDEL', T .. 's:' .. sid, lease)
end

-- Remember an ID that must not come to life again, for as long as a request can be late.
local function bury(id, ttl)
  call('SET', T .. 'd:' .. id, '1', 'PX', num(math.max(ttl, TOMB_TTL)))
end

-- Remove a session that has ended, up to budget leases. Returns the rest of the budget.
local function reap(sid, budget)
  local key = T .. 's:' .. sid
  local s = session(sid)
  local cursor = '0'
  repeat
    local r = call('HSCAN', key, cursor, 'COUNT', 256)
    cursor = r[1]
    local kv = r[2]
    for i = 1, #kv, 2 do
      if kv[i] ~= '@' and kv[i] ~= '!' then
        if budget <= 0 then return 0 end
        if not pcall(orphan, kv[i + 1], kv[i], sid, s.ended) then call('HDEL', key, kv[i]) end
        budget = budget - 1
      end
    end
  until cursor == '0'
  call('DEL', key)
  expire(sid)
  bury(sid, s.ttl)
  if not s.ended then
    push(s.chan, 'l', sid, '', 'session', '')
  end
  return budget - 1
end

-- Remove a timed lease that has expired.
local function lapse(lease, name)
  local l, rec = lock(name, lease)
  local h = rec and holder(rec)
  if h and h.timed then
    vacate(l, lease, h, 'expired')
  else
    call('ZREM', X, 't:' .. lease .. ':' .. name)
  end
end

-- Remove what has ended, up to budget leases. Returns whether that was all.
local function sweep(budget)
  while true do
    local due = call('ZRANGEBYSCORE', X, '-inf', num(now), 'LIMIT', 0, 64)
    if #due == 0 then return true end
    for _, member in ipairs(due) do
      if budget <= 0 then return false end
      local sid = string.match(member, '^s:(.*)$')
      if sid then
        local ok, rest = pcall(reap, sid, budget)
        if not ok then expire(sid) end
        budget = ok and rest or budget - 1
      else
        local lease, name = string.match(member, '^t:([^:]*):(.*)$')
        if not lease then foreign(X) end
        if not pcall(lapse, lease, name) then call('ZREM', X, member) end
        budget = budget - 1
      end
    end
  end
end

-- Remove thin locks that are held no more. Nobody waits for them, and whoever wants one
-- takes it, so this only frees memory. It goes on while many of those that it picks are gone.
local function collect()
  local most, picked, rounds = 4, 16, 64
  for _ = 1, rounds do
    local gone = {}
    for _, member in ipairs(call('ZRANDMEMBER', THIN, picked)) do
      local name, lease, rec = parts(member)
      if not genuine(name, lease, holder(rec)) then gone[#gone + 1] = member end
    end
    if #gone > 0 then call('ZREM', THIN, unpack(gone)) end
    if #gone <= most then return end
  end
end

-- Remove what has ended from one lock.
local function purge(l)
  if l.n == 0 and l.queued == 0 then return end
  local changed = false
  local all = call('HGETALL', l.key)
  for i = 1, #all, 2 do
    if all[i] ~= '@' then
      local h = intact(l, holder, all[i + 1])
      if not alive(life(l.name, all[i], h)) then
        withdraw(l, all[i], h)
        event('expired', l.name, all[i], h)
        changed = true
      end
    end
  end
  advance(l, changed)
  save(l)
end

-- The lock as it is: nothing of it has ended. Also returns the record of the lease, when it
-- is held.
local function open(name, lease)
  local l, rec = lock(name, lease)
  if not clean then
    purge(l)
    l, rec = lock(name, lease)
  end
  return l, rec
end

-- The record of the lease in the queue, if it is there and its session lives.
local function inline(l, lease)
  local rec = l.queued > 0 and call('HGET', l.w, lease)
  if not rec then return nil end
  local w = waiter(rec)
  if clean or alive('s:' .. w.sid) then return w end
  quit(l, lease, w, 'S')
  return nil
end
