-- The operations for people: inspect, list, break, watch.

-- A lock: name limit token holders waiters. Without a holder no token is on record, and it
-- is 0.
local function describe(l)
  local limit = l.x == 1 and 1 or l.limit
  local queue = {}
  if l.queued > 0 then
    for _, lease in ipairs(call('ZRANGE', l.q, 0, -1)) do
      local w = queued(l, lease)
      if w and (clean or alive(w.sid)) then queue[#queue + 1] = shown(lease, w) end
    end
  end
  local all, newest = present(l, -1), 0
  for _, out in ipairs(all) do newest = math.max(newest, out[5]) end
  return {l.name, limit, newest, all, queue}
end

-- inspect name -> OK lock
local function inspect(i)
  return {'OK', describe((open(ARGV[i])))}
end

-- The names of up to so many locks, in order: those on record as a hash, and the thin ones.
local function names(prefix, after, most)
  local max = prefix == '' and '+' or '(' .. prefix .. '\255' -- no UTF-8 text has this byte
  local min, thinmin = '[' .. prefix, '[' .. prefix
  if not precedes(after, prefix) then
    min, thinmin = '(' .. after, '[' .. after .. '\11' -- behind all that begins with after and a newline
  end
  local fat, slim = call('ZRANGEBYLEX', N, min, max, 'LIMIT', 0, most), {}
  for k, member in ipairs(call('ZRANGEBYLEX', THIN, thinmin, max, 'LIMIT', 0, most)) do
    slim[k] = string.match(member, '^[^\n]*')
  end
  local all, j, k = {}, 1, 1
  while #all < most and (fat[j] or slim[k]) do
    if fat[j] and not (slim[k] and precedes(slim[k], fat[j])) then
      all[#all + 1], j = fat[j], j + 1
    else
      all[#all + 1], k = slim[k], k + 1
    end
  end
  return all
end

-- list prefix after limit -> OK more lock...
local function list(i)
  local prefix, after, limit = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local some = names(prefix, after, limit + 1)
  local r = {'OK', some[limit + 1] and some[limit] or ''}
  for j = 1, math.min(limit, #some) do
    local l = open(some[j])
    if l.n > 0 or l.queued > 0 then r[#r + 1] = describe(l) end
  end
  return r
end

local PART = 128 -- as many holders lose a lock in one call: Redis serves no other client in the meantime

-- break name reason lease below -> OK token more holder... | CLOCK. Without a lease, all holders with a token below that
-- number lose the lock. The first call of a break has no number, and draws one: its victims are those who hold the
-- lock now. more: 1 when some still do, and the client must call again.
local function breaklock(i)
  local name, reason, one, below = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  local l = open(name)
  local t = below or tokens('1')
  if not t then return {'CLOCK'} end
  local r = {'OK', t, 0}
  if l.n == 0 then return r end
  local victims, lines = {}, {} -- lines: by session, written once
  for lease, c in holders(l, one ~= '' and not l.thin and {one, call('HGET', l.key, one) or nil}) do
    if c.token < t and (one == '' or one == lease) then
      if #victims == PART then
        r[3] = 1
        break
      end
      victims[#victims + 1] = {lease, c}
    end
  end
  for k, victim in ipairs(victims) do
    local lease, c = victim[1], victim[2]
    local chan, sid = c.chan, c.sid
    r[3 + k] = shown(lease, c, math.max(0, expiry(name, lease, c) - now))
    withdraw(l, lease, c)
    if c.ttl == 0 and alive(sid) then
      lines[sid] = lines[sid] or {}
      table.insert(lines[sid], lease .. '\t' .. reason)
      local ok, s = pcall(session, sid)
      if ok then chan = s.chan end
    end
    push(chan, 'l', sid, lease, 'broken', reason)
    event('broken', name, lease, c, reason)
  end
  for sid, told in pairs(lines) do broken(sid, told) end
  advance(l, true)
  save(l)
  return r
end

-- watch ttl fresh -> OK stream more: the name of the stream of events from now on, for as long
-- as there is a watcher. It is fresh if there was none until now. Channels are the same for
-- all databases of a server; the name of the stream is stored in this one.
-- The release of a thin lock is no event, so from now on there are none: no lock becomes thin
-- while there is a stream, and those that are thin are inflated. more: 1 when some still are,
-- and the client must call again.
local function watch(i)
  if full then crowded() end
  local stream = call('GET', STREAM) or ARGV[i + 1]
  call('SET', STREAM, stream, 'PX', ARGV[i])
  watched = stream
  local most, before = 1000, call('ZCARD', THIN)
  for _, member in ipairs(call('ZRANGE', THIN, 0, most - 1)) do
    pcall(function()
      local l = lock((string.match(member, '^[^\n]*')))
      if l.thin then inflate(l) end
    end)
  end
  local after = call('ZCARD', THIN)
  return {'OK', stream, after > 0 and after < before and 1 or 0}
end
