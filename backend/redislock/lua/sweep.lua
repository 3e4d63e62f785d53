-- The sweep removes what has ended from the records, a bounded number at each call, and
-- hands the locks over to waiters. A call that leaves some of it removes what has ended from
-- its own lock by itself (purge): no decision is ever based on what has ended. A record that
-- cannot be read is left as it is: nothing is granted on it, and other locks are not
-- affected.

-- Remove a lease, or a waiter, of a session that has ended.
local function orphan(name, lease, sid, ended)
  local l, c = lock(name, lease)
  if c and c.ttl == 0 and c.sid == sid then return vacate(l, lease, c, ended and 'released' or 'expired') end
  local w = l.queued > 0 and queued(l, lease)
  if w and w.sid == sid then return quit(l, lease, w, 'S') end
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
  local l, c = lock(name, lease)
  if c and c.ttl > 0 then
    vacate(l, lease, c, 'expired')
  else
    call('ZREM', X, 't:' .. lease .. ':' .. name)
  end
end

-- Remove what has ended, up to budget leases. Returns whether that was all.
local function sweep(budget)
  purged = {}
  while true do
    local due = call('ZRANGEBYSCORE', X, '-inf', instant, 'LIMIT', 0, 64)
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
-- takes it, so this only frees memory. It continues while many of those that it picks are gone.
local function collect()
  local most, picked, rounds = 4, 16, 64
  for _ = 1, rounds do
    local gone = {}
    for _, member in ipairs(call('ZRANDMEMBER', THIN, picked)) do
      if not ends(life(parts(member))) then gone[#gone + 1] = member end
    end
    if #gone > 0 then call('ZREM', THIN, unpack(gone)) end
    if #gone <= most then return end
  end
end

-- Remove what has ended from one lock.
local function purge(l)
  if l.n == 0 and l.queued == 0 then return end
  local ended = {}
  for lease, c in holders(l) do
    if expiry(l.name, lease, c) <= now then ended[#ended + 1] = {lease, c} end
  end
  for _, one in ipairs(ended) do
    withdraw(l, one[1], one[2])
    event('expired', l.name, one[1], one[2])
  end
  advance(l, #ended > 0)
  save(l)
end

-- The lock as it is: nothing of it has ended. Also returns the claim of the lease, when it
-- is held.
local function open(name, lease)
  if not (clean or purged[name]) then
    purge(lock(name))
    purged[name] = true
  end
  return lock(name, lease)
end

-- The claim of the lease in the queue, if it is there and its session lives.
local function inline(l, lease)
  local w = l.queued > 0 and queued(l, lease)
  if not w or clean or alive(w.sid) then return w or nil end
  quit(l, lease, w, 'S')
  return nil
end
