-- One node of a Redlock: what it votes for. It knows nothing of the other nodes: the client
-- decides what a vote is worth. The protocol is described in doc.go.
--
-- KEYS[1]  the marker, "PREFIX:m". All other keys are built from its prefix:
--   f:NAME   the counter: the greatest token seen, and which lease set it. It outlives the
--            lock by KEEP. It also contains the vote of a lock that has a single, exclusive vote
--   l:NAME   hash of the votes given in all other cases, and "@", a summary
--   d:LEASE  what must not get a vote (again): "*", or an attempt and all before it
--   n        zset of the names of the locks with votes, by the instant the last one ends
--   t        list: the names in order, while a page of them is made
--   w:NAME   channel: votes that were released
-- ARGV     max_ttl (ms), 'q' to keep the quarantine or '-', the identity of the data that
--          the client knows, and then for each operation its name, the number of its
--          arguments, and the arguments
-- Answer: 'OK' and an answer for each operation; or 'MARKER' when nothing was done, because
-- the client must call hello first; or 'FORMAT'. After hello the identity comes first.
--
-- It is made of the files node, quick and main, and then function or script. A function is
-- loaded once, and what is defined here stays from one execution to the next: begin sets all
-- that belongs to one execution. A script runs from its first line on every call, and each
-- identity has a script of its own, with a comment at the end. So a server process that was
-- not checked yet for a loss of this data does not know the script. A function finds that
-- the process was not greeted.
--
-- Times are the node's, in microseconds. Numbers stay below 2^53, where a double counts
-- exactly. They are written with %.0f, because tostring rounds them.

local KEY, P, N -- of the prefix
-- Of the execution:
local call, ARGV
local now
local keep -- until when a counter is kept that is set now (ms)
local quarantine -- no vote is given before this instant
local complete -- since this instant the node has all that it wrote: born of the marker
local full -- the memory of the server is full: nothing may be added

local KEEP = 172800000000 -- us: two days, longer than any TTL and than a clock may be wrong

local function begin(keys, args, is_full)
  call, ARGV, full = redis.call, args, is_full
  if KEY ~= keys[1] then
    KEY = keys[1]
    P = string.sub(KEY, 1, -2)
    N = P .. 'n'
  end
  local clock = call('TIME')
  now = clock[1] * 1000000 + clock[2]
  keep = string.format('%.0f', (now + KEEP) / 1000)
  quarantine = 0
end

local HOUR = 3600000000
local TOMB = 300000 -- ms: longer than a request can be late
local SHOWN = 64 -- votes that a refusal names

local function num(n)
  return string.format('%.0f', n)
end

-- The record of a vote: its fields, joined by newlines. The texts hold no control characters.
local F = '([^\n]*)\n' -- a library has no functions of strings while it is read
local RECORD = '^' .. F .. F .. F .. F .. F .. F .. F .. F .. F .. F .. '(.*)$'

local function read(rec)
  local attempt, mode, permits, limit, token, final, ends, since, ttl, owner, note = string.match(rec, RECORD)
  if not attempt then error({err = 'HFFOREIGN a vote'}) end
  return {attempt = attempt, mode = mode, permits = tonumber(permits), limit = tonumber(limit), token = tonumber(token),
    final = final, ends = tonumber(ends), since = since, ttl = tonumber(ttl), owner = owner, note = note}
end

local function written(h)
  return table.concat({h.attempt, h.mode, h.permits, h.limit, num(h.token), h.final, num(h.ends), h.since, num(h.ttl), h.owner, h.note}, '\n')
end

-- The summary of a lock saves reading all of its votes:
--   n     votes given         x      1 when they are exclusive
--   used  permits given       limit  of shared votes
--   min   none ends before    max    none ends after
local function count(l, h)
  l.n = l.n + 1
  l.used = l.used + h.permits
  if h.mode == 'x' then l.x = 1 else l.limit = h.limit end
  if h.ends < l.min then l.min = h.ends end
  if h.ends > l.max then l.max = h.ends end
end

local NEVER = 9007199254740991

local function clear(l)
  l.n, l.used, l.x, l.limit, l.min, l.max = 0, 0, 0, 0, NEVER, 0
end

-- Write the summary back, and with lease also its record.
local function save(l, lease, rec)
  if l.n == 0 then
    call('DEL', l.key)
    call('ZREM', N, l.name)
    return
  end
  local summary = table.concat({num(l.n), num(l.used), l.x, num(l.limit), num(l.min), num(l.max)}, ' ')
  if lease then
    call('HSET', l.key, '@', summary, lease, rec)
  else
    call('HSET', l.key, '@', summary)
  end
  call('PEXPIREAT', l.key, num(math.ceil(l.max / 1000) + 1))
  call('ZADD', N, num(l.max), l.name)
end

-- The counter of a lock, which lease set it, and the vote that is stored with it: a lease,
-- its record and when it ends, nil when there is none. The vote may have ended. The text is
-- the number and the lease that set it, then on a line of their own the end and the lease of
-- the vote, then its record.
local function counter(name, text)
  text = text or call('GET', P .. 'f:' .. name)
  if not text then return 0, '' end
  local n, by, rest = string.match(text, '^(%d+) ([^\n]*)(.*)$')
  if not n then error({err = 'HFFOREIGN ' .. P .. 'f:' .. name}) end
  if rest == '' then return tonumber(n), by end
  local ends, lease, rec = string.match(rest, '^\n(%d+) ([^\n]*)\n(.*)$')
  if not lease then error({err = 'HFFOREIGN ' .. P .. 'f:' .. name}) end
  return tonumber(n), by, lease, rec, tonumber(ends)
end

-- Set counters to texts: key, text, and so on. The server forgets one when it was not used for KEEP: then the clock is
-- ahead of it, and takes its place. See acquire. One MSET and the TTLs cost half of a SET with a TTL for each.
local function store(texts)
  call('MSET', unpack(texts))
  for k = 1, #texts, 2 do call('PEXPIREAT', texts[k], keep) end
end

-- Set the counter, without the vote that was stored with it.
local function setcounter(name, n, by)
  store({P .. 'f:' .. name, num(n) .. ' ' .. by})
end

-- Move the vote that is stored with the counter to the hash, which has room for many.
local function unfold(l)
  local n, by, lease, rec = counter(l.name)
  if not lease then return end
  local h = read(rec) -- it may fail, and then nothing is written
  setcounter(l.name, n, by)
  if h.ends > now then
    count(l, h)
    save(l, lease, rec)
    clear(l)
  else
    call('ZREM', N, l.name)
  end
end

-- The lock as it is: nothing of it has ended. Also returns the record of the lease.
local function open(name, lease)
  local l = {name = name, key = P .. 'l:' .. name}
  clear(l)
  unfold(l)
  clear(l)
  local got = call('HMGET', l.key, '@', lease or '@')
  if not got[1] then return l, nil end
  local n, used, x, limit, min, max = string.match(got[1], '^(%d+) (%d+) (%d) (%d+) (%d+) (%d+)$')
  if not n then error({err = 'HFFOREIGN ' .. l.key}) end
  if now < tonumber(min) then
    l.n, l.used, l.x, l.limit, l.min, l.max =
      tonumber(n), tonumber(used), tonumber(x), tonumber(limit), tonumber(min), tonumber(max)
    return l, lease and got[2] or nil
  end
  local all = call('HGETALL', l.key)
  for i = 1, #all, 2 do
    if all[i] ~= '@' then
      local h = read(all[i + 1])
      if h.ends > now then
        count(l, h)
      else
        call('HDEL', l.key, all[i])
        if all[i] == lease then got[2] = false end
      end
    end
  end
  save(l)
  return l, lease and got[2] or nil
end

-- Remove a vote.
local function drop(l, lease, h)
  l.n = l.n - 1
  l.used = l.used - h.permits
  if l.n > 0 then call('HDEL', l.key, lease) end
  save(l)
end

-- The notification may be refused: the user may lack the permission for the channel. That does
-- not end the operation. A lost notification costs a timer.
local function tell(name, lease)
  pcall(call, 'PUBLISH', P .. 'w:' .. name, lease)
end

-- The votes that are in force, as pairs of lease and record.
local function votes(l, most)
  if l.n == 0 then return {} end
  local all
  if most and l.n > most then
    all = call('HRANDFIELD', l.key, most + 1, 'WITHVALUES')
  else
    all = call('HGETALL', l.key)
  end
  local r = {}
  for i = 1, #all, 2 do
    if all[i] ~= '@' then
      -- Votes that are left out are not read.
      if read(all[i + 1]).ends > now then r[#r + 1] = {all[i], all[i + 1]} end
    end
  end
  return r
end

-- The votes of a lock and its counter, for operations that only read.
local function look(name)
  local n, _, lease, rec, ends = counter(name)
  if not lease then return votes((open(name))), n end
  if ends > now then return {{lease, rec}}, n end
  return {}, n
end

local function fits(l, mode, permits, limit)
  if l.n == 0 then return true end
  if mode == 'x' or l.x == 1 then return false end
  if l.limit ~= limit then return false end
  return limit == 0 or l.used + permits <= limit
end

local op = {}

-- Whether a vote was given before a loss of data, and the quarantine has not ended yet. The
-- lease may have been released or broken since, which the node forgot: then other leases were
-- granted, and the vote must not count. It keeps other leases away until it ends, which is
-- before the quarantine does.
local function stale(h)
  local since = tonumber(h.since)
  return quarantine > now and (since < complete or since > now)
end

-- acquire ttl mode permits limit owner note (name lease attempt floor)... An answer for
-- each: -> G token left since final old | H now n votes... | Q left there | L | S attempt | C
--   G  the vote is given; old: 1 when it was given to another attempt
--   H  other leases are in the way
--   Q  this node does not vote yet; there: 1 when it has a stale vote of the lease
--   L  the lease was abandoned for good
--   S  the attempt was abandoned for good
--   C  the clocks are too far apart
local function acquire(t, i)
  local ttl, mode, permits, limit = tonumber(ARGV[t]), ARGV[t + 1], tonumber(ARGV[t + 2]), tonumber(ARGV[t + 3])
  local name, lease, attempt, floor = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  local tomb = call('GET', P .. 'd:' .. lease)
  if tomb == '*' then return {'L'} end
  if tomb and tonumber(attempt) <= tonumber(tomb) then return {'S', tomb} end
  local l, rec = open(name, lease)
  if rec then
    local h, other = read(rec), 0
    if stale(h) then return {'Q', num(quarantine - now), 1} end
    -- Another attempt for the same lease: neither may remove the vote that the other counts.
    if h.attempt ~= attempt then
      h.attempt, other = '*', 1
      call('HSET', l.key, lease, written(h))
    end
    return {'G', num(h.token), num(h.ends - now), h.since, h.final, other}
  end
  if not fits(l, mode, permits, limit) then return {'H', num(now), l.n, votes(l, SHOWN)} end
  if quarantine > now then return {'Q', num(quarantine - now), 0} end
  if full then error({err = 'OOM the memory is full'}) end
  local ctr = counter(name)
  local token = ctr + 1
  if floor > token then token = floor end
  -- After two days the counter is forgotten: then the clock replaces it.
  if ctr == 0 and now - HOUR > token then token = now - HOUR end
  if token > now + HOUR then return {'C'} end
  local h = {attempt = attempt, mode = mode, permits = permits, limit = limit, token = token, final = '0',
    ends = now + ttl * 1000, since = num(now), ttl = ttl, owner = ARGV[t + 4], note = ARGV[t + 5]}
  setcounter(name, token, lease)
  count(l, h)
  save(l, lease, written(h))
  return {'G', num(token), num(ttl * 1000), h.since, '0', 0}
end

-- write name lease token -> OK | NO counter
-- Set the token that the lease has on all nodes. It is accepted only while the vote is in
-- force, and while no other lease is known to have had as great a token here. It is refused
-- during a quarantine: a token that was lost may be greater.
op.write = function(i)
  local name, lease, token = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local l, rec = open(name, lease)
  local ctr, by = counter(name)
  if quarantine > now or not rec or ctr > token or (ctr == token and by ~= lease) then return {'NO', num(ctr)} end
  setcounter(name, token, lease)
  local h = read(rec)
  h.token, h.final = token, '1'
  call('HSET', l.key, lease, written(h))
  return {'OK'}
end

-- fix name lease token -> 1
-- Record the token that the lease got, for operations that read. It is no vote, and the
-- counter stays.
op.fix = function(i)
  local l, rec = open(ARGV[i], ARGV[i + 1])
  if rec then
    local h = read(rec)
    h.token, h.final = tonumber(ARGV[i + 2]), '1'
    call('HSET', l.key, ARGV[i + 1], written(h))
  end
  return {1}
end

-- has name lease -> 1 | 0
op.has = function(i)
  for _, v in ipairs((look(ARGV[i]))) do
    if v[1] == ARGV[i + 1] then return {1} end
  end
  return {0}
end

-- back name lease attempt told -> 1 | 0
-- Remove the vote that the attempt got, or may still get. told: another client may believe that
-- the lease is held, and wait.
op.back = function(i)
  local name, lease, attempt = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local l, rec = open(name, lease)
  local h = rec and read(rec)
  if h and h.attempt == attempt then
    drop(l, lease, h)
    if ARGV[i + 3] == '1' then tell(name, lease) end
    return {1}
  end
  local tomb = call('GET', P .. 'd:' .. lease)
  if not tomb or (tomb ~= '*' and tonumber(tomb) < tonumber(attempt)) then
    call('SET', P .. 'd:' .. lease, attempt, 'PX', TOMB)
  end
  return {0}
end

-- release abandon (name lease)... An answer for each: -> 1 | 0
-- The request for a vote that is not there may still arrive: requests can overtake each
-- other.
local function release(t, i)
  local name, lease = ARGV[i], ARGV[i + 1]
  local l, rec = open(name, lease)
  if not rec or ARGV[t] == '1' then call('SET', P .. 'd:' .. lease, '*', 'PX', TOMB) end
  if not rec then return {0} end
  drop(l, lease, read(rec))
  tell(name, lease)
  return {1}
end

local function renew(name, lease, ttl)
  local n, by, alone, own = counter(name)
  if alone == lease then
    local h = read(own)
    if h.ends <= now or stale(h) then return {'L'} end
    if ttl > 0 then h.ttl = ttl end
    h.ends = now + h.ttl * 1000
    store({P .. 'f:' .. name, table.concat({num(n), ' ', by, '\n', num(h.ends), ' ', lease, '\n', written(h)})})
    call('ZADD', N, num(h.ends), name)
    return {'R', num(h.token), h.final, h.mode, h.limit, num(h.ttl)}
  end
  local l, rec = open(name, lease)
  if not rec then return {'L'} end
  local h = read(rec)
  if stale(h) then return {'L'} end
  if ttl > 0 then h.ttl = ttl end
  h.ends = now + h.ttl * 1000
  if h.ends < l.min then l.min = h.ends end
  if h.ends > l.max then l.max = h.ends end
  save(l, lease, written(h))
  return {'R', num(h.token), h.final, h.mode, h.limit, num(h.ttl)}
end

-- renew n (name lease ttl)... -> OK answer..., each R token final mode limit ttl | L
-- ttl is 0 to keep that of the vote.
op.renew = function(i)
  local r = {'OK'}
  for j = i + 1, i + 3 * tonumber(ARGV[i]), 3 do
    r[#r + 1] = renew(ARGV[j], ARGV[j + 1], tonumber(ARGV[j + 2]))
  end
  return r
end

-- inspect name -> I now counter votes
op.inspect = function(i)
  local all, n = look(ARGV[i])
  return {'I', num(now), num(n), all}
end

-- list prefix after most -> T now more (name counter votes)... The server sorts the names:
-- in Lua that would take so long that the node would be unavailable meanwhile.
op.list = function(i)
  local prefix, after, most = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  call('ZREMRANGEBYSCORE', N, '-inf', num(now))
  local sorted = P .. 't'
  local from, to = 0, call('SORT', N, 'ALPHA', 'STORE', sorted) -- with STORE it is by bytes
  while from < to do
    local middle = math.floor((from + to) / 2)
    local name = call('LINDEX', sorted, middle)
    if precedes(after, name) and not precedes(name, prefix) then to = middle else from = middle + 1 end
  end
  local names = call('LRANGE', sorted, from, from + most)
  call('UNLINK', sorted)
  while #names > 0 and string.sub(names[#names], 1, #prefix) ~= prefix do names[#names] = nil end
  local r = {'T', num(now), #names > most and 1 or 0}
  for j = 1, math.min(#names, most) do
    local all, n = look(names[j])
    r[#r + 1] = {names[j], num(n), all}
  end
  return r
end

-- break name token by victims lease... -> OK broken... | NO counter broken... | C: as for acquire
op['break'] = function(i)
  local name, token, by = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]
  if token > now + HOUR then return {'C'} end
  open(name) -- moves the vote out of the counter: setcounter would delete it
  local ctr, whose = counter(name)
  local r = {'OK'}
  if ctr < token or (ctr == token and whose == by) then
    setcounter(name, token, by)
  else
    r = {'NO', num(ctr)}
  end
  for j = i + 4, i + 3 + tonumber(ARGV[i + 3]) do
    local l, rec = open(name, ARGV[j])
    call('SET', P .. 'd:' .. ARGV[j], '*', 'PX', TOMB)
    if rec then
      drop(l, ARGV[j], read(rec))
      tell(name, ARGV[j])
      r[#r + 1] = ARGV[j]
    end
  end
  return r
end

op.ping = function() return {'OK'} end

-- ready -> OK | Q left: whether the node votes
op.ready = function()
  if quarantine > now then return {'Q', num(quarantine - now)} end
  return {'OK'}
end
