-- Sessions.

-- session.open sid ttl channel -> OK | SESSION
local function opensession(i)
  local sid, ttl, chan = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]
  local key = T .. 's:' .. sid
  local before = ends('s:' .. sid)
  if before and before <= now then return {'SESSION'} end
  if not before and call('EXISTS', T .. 'd:' .. sid) == 1 then return {'SESSION'} end
  if full and not before then crowded() end
  call('HSET', key, '@', num(ttl) .. (ARGV[2] == '-' and ' 2 ' or ' 0 ') .. chan)
  prolong(sid, now + ttl * 1000)
  note(ttl)
  if before and before > now + ttl * 1000 then
    -- It ends earlier than the clients that wait for its leases were told.
    local all = call('HGETALL', key)
    for j = 1, #all, 2 do
      if all[j] ~= '@' and all[j] ~= '!' then
        if call('EXISTS', T .. 'q:' .. all[j + 1]) == 1 then
          local l = lock(all[j + 1])
          nudge(l, behind(l, all[j])) -- the head of the queue if the lease is held
        end
      end
    end
  end
  return OK
end

local MUCH = 5000 -- leases that one call releases

-- session.end sid members member... -> OK 1 when all are released | OK 0 when to call again
-- The members are thin locks of the session.
local function endsession(i)
  local sid, members = ARGV[i], tonumber(ARGV[i + 1])
  if members > 0 then call('ZREM', THIN, unpack(ARGV, i + 2, i + 1 + members)) end
  local known = ends('s:' .. sid)
  expire(sid)
  if not known then
    bury(sid, 0)
    return {'OK', 1}
  end
  -- From here on the session has ended, and with it all that lives by it. Its end is 0, so
  -- that a sweep finds it first.
  local s = session(sid)
  call('HSET', T .. 's:' .. sid, '@', num(s.ttl) .. ' 1 ' .. s.chan)
  call('ZADD', X, '0', 's:' .. sid)
  if reap(sid, MUCH) > 0 or not ends('s:' .. sid) then return {'OK', 1} end
  clean, purged = false, {}
  return {'OK', 0}
end

-- Field '!' of a session: its leases that were broken and are not acknowledged, one per
-- line, lease and reason with a tab between.
local function broken(sid, lines)
  local key = T .. 's:' .. sid
  local list = call('HGET', key, '!')
  call('HSET', key, '!', (list and list .. '\n' or '') .. table.concat(lines, '\n'))
end

local function acknowledge(key, list, acks)
  local kept = {}
  for line in string.gmatch(list, '[^\n]+') do
    if not acks[string.match(line, '^[^\t]*')] then kept[#kept + 1] = line end
  end
  if #kept == 0 then
    call('HDEL', key, '!')
    return ''
  end
  list = table.concat(kept, '\n')
  call('HSET', key, '!', list)
  return list
end

-- ttl is 0 to keep that of the lease.
local function renewlease(name, lease, ttl)
  local l, c = open(name, lease)
  if not c or c.ttl == 0 or stale(c) then return {'LOST'} end
  if ttl == 0 then
    ttl = c.ttl
  elseif ttl ~= c.ttl then
    c.ttl = ttl
    if l.thin then inflate(l) else call('HSET', l.key, lease, cmsgpack.pack(c)) end
  end
  local member = life(name, lease, c)
  local e = now + ttl * 1000
  local before = ends(member)
  call('ZADD', X, num(e), member)
  note(ttl)
  if before and e < before then nudge(l) end
  return {'OK', c.token, ttl * 1000}
end

-- renew sid acks ack... leases (name lease ttl)... -> OK session broken lease...
-- session: 1 renewed, 0 lost, or '' when none was given.
local function renew(i)
  local sid, acks, told = ARGV[i], tonumber(ARGV[i + 1]), {}
  for j = 1, acks do told[ARGV[i + 1 + j]] = true end
  i = i + 2 + acks
  local r = {'OK', '', ''}
  if sid ~= '' then
    r[2] = 0
    local key, s = T .. 's:' .. sid, session(sid)
    if alive(sid) and s.ttl > 0 then
      prolong(sid, now + s.ttl * 1000)
      note(s.ttl)
      pcall(collect)
      r[2] = 1
      local list = call('HGET', key, '!')
      if list then
        r[3] = acknowledge(key, list, told)
      end
    end
  end
  for j = 1, tonumber(ARGV[i]) do
    local k = i + (j - 1) * 3
    r[3 + j] = renewlease(ARGV[k + 1], ARGV[k + 2], tonumber(ARGV[k + 3]))
  end
  return r
end
