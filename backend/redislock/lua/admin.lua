-- The operations for people: inspect, list, break, watch.

-- A lock: name limit token holders waiters. Without a holder no token is on record, and it
-- is 0.
local function describe(l)
  local limit = l.limit
  if l.x == 1 then limit = 1 end
  local queue = {}
  if l.queued > 0 then
    for _, lease in ipairs(call('ZRANGE', l.q, 0, -1)) do
      local rec = call('HGET', l.w, lease)
      if rec and (clean or alive('s:' .. waiter(rec).sid)) then queue[#queue + 1] = {lease, rec} end
    end
  end
  local all, newest = holders(l, -1), 0
  for _, out in ipairs(all) do
    local t = tonumber(holder(out[2]).token)
    if t > newest then newest = t end
  end
  return {l.name, limit, newest, all, queue}
end

-- inspect name -> OK lock
local function inspect(i)
  return {'OK', describe((open(ARGV[i])))}
end

-- list prefix after limit -> OK more lock...
local function list(i)
  local prefix, after, limit = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local min = '[' .. prefix
  if after ~= '' and after >= prefix then min = '(' .. after end
  local max = '+'
  if prefix ~= '' then max = '(' .. prefix .. '\255' end -- no UTF-8 text has this byte
  local names = call('ZRANGEBYLEX', N, min, max, 'LIMIT', 0, limit + 1)
  local r = {'OK', 0}
  for j, name in ipairs(names) do
    if j > limit then
      r[2] = 1
      break
    end
    local l = open(name)
    if l.n > 0 or l.queued > 0 then r[#r + 1] = describe(l) end
  end
  if r[2] == 1 then r[2] = names[limit] else r[2] = '' end
  return r
end

-- break name reason -> OK token holder... | CLOCK
local function breaklock(i)
  local name, reason = ARGV[i], ARGV[i + 1]
  local l = open(name)
  local t = tokens(1)
  if not t then return {'CLOCK'} end
  local r = {'OK', t}
  if l.n == 0 then return r end
  local lines = {} -- by session, written once: thousands of its leases may be broken
  for _, out in ipairs(holders(l, -1, true)) do
    local lease, h = out[1], holder(out[2])
    r[#r + 1] = out
    withdraw(l, lease, h)
    local chan = h.chan
    if not h.timed and alive('s:' .. h.sid) then
      lines[h.sid] = lines[h.sid] or {}
      table.insert(lines[h.sid], lease .. '\t' .. reason)
      local ok, s = pcall(session, h.sid)
      if ok then chan = s.chan end
    end
    push(chan, 'l', h.sid, lease, 'broken', reason)
    event('broken', name, lease, h, reason)
  end
  for sid, told in pairs(lines) do broken(sid, told) end
  advance(l, true)
  save(l)
  return r
end

-- watch ttl fresh -> OK stream: the name of the stream of events from now on, for as long as
-- there is a watcher. It is fresh if there was none until now. Channels are the same for all
-- databases of a server; the name of the stream is stored in this one.
local function watch(i)
  if full then crowded() end
  local stream = call('GET', T .. 'v') or ARGV[i + 1]
  call('SET', T .. 'v', stream, 'PX', ARGV[i])
  return {'OK', stream}
end
