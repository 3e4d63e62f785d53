-- ARGV: identity mode, then for each operation its name, the number of its arguments, and
-- the arguments.
--   identity  of the data that the client knows: its generation and the server's run, with
--             a space between, as they are in the marker
--   mode      the quarantine of the client (ms); '-': it has none
-- Answer: 'OK' and an answer for each operation; or token and time of a lease that went the shortest way, as one text: see
-- takeone; or 'MARKER' when nothing was done, because the client must call hello
-- first. An operation that failed is answered with 'ERR', and does not affect the others.
-- acquire, release and check take many leases. When all went the short way the answer is 'ALL',
-- and for acquire the token of the first lease (the others have those that follow), since,
-- and the time that is left. Otherwise it is 'EACH' and an answer for each lease, in which
-- 'T' token since left means that it went the short way.
--
-- A server that was restarted, or took the place of another, may have lost data, and only
-- hello finds out: so hello comes first there. A function remembers which identities this
-- process has greeted. A script cannot. So the client has a script for each identity, and
-- the process does not know that script before hello was sent with its text. Both read
-- whether the server was a replica in the meantime: the script with each call, the function
-- when it has not done so for a while.

return {
  hello = hello,
  sweep = sweep,
  parse = parse,
  rebase = rebase,
  acquire = acquire,
  release = release,
  check = check,
  renew = renew,
  ['session.open'] = opensession,
  ['session.end'] = endsession,
  inspect = inspect,
  list = list,
  ['break'] = breaklock,
  watch = watch,
  ping = function() return {'OK'} end,
  ready = function() return refused(quarantine) or {'OK'} end,
}

end -- define

local lib -- once it is defined

local function library()
  lib = lib or define()
  return lib
end


local greeted = {} -- the identities that hello returned in this process, with the time of the last check: see unmet

-- One operation, or one lease of it, the long way.
local function long(op, i, name, lease)
  local ok, r = pcall(library()[op], i, name, lease)
  if not ok then
    local text = type(r) == 'table' and r.err or tostring(r)
    if string.find(text, '^READONLY') then error({err = text}) end -- nothing was done, nor will be: another server has the data
    r = {'ERR', text}
  end
  return r
end

-- One lease of an operation, the middle way where that is enough.
local function middle(op, i, name, lease)
  local ok, r = pcall(op == 'acquire' and join or pass, i, name, lease)
  return ok and r or long(op, i, name, lease)
end

-- An operation on many leases, which begin after so many arguments. done: the answers for
-- those that went the short way, by their position in ARGV.
local function each(op, i, n, after, brief, done)
  local r = {'EACH'}
  for j = i + after, i + n - 1, 2 do
    r[#r + 1] = done and done[j] or (brief and middle or long)(op, i, ARGV[j], ARGV[j + 1])
  end
  return r
end

local function acquisition(i, n, brief)
  local ok, done, first, left
  if brief and met == 0 then ok, done, first, left = pcall(take, i, n) end
  if not ok then done = nil end -- to write again what it wrote does no harm
  if done and 2 * #done == n - 1 then return {'ALL', first, now, left} end
  local at = {}
  for k, where in ipairs(done or {}) do at[where] = {'T', first + k - 1, now, left} end
  return each('acquire', i, n, 1, brief, at)
end

local function giving(i, n, brief)
  local done, count = {}, 0
  pcall(untake, i, n, done)
  for at = i + 2, i + n - 1, 2 do
    if done[at] then
      count = count + 1
    elseif ARGV[at + 1] == '' then -- the lock is not thin any more
      ARGV[at], ARGV[at + 1] = string.match(ARGV[at], '^([^\n]*)\n([^\n]*)\n')
    end
  end
  if 2 * count == n - 2 then return {'ALL'} end
  local ok, timed
  if brief then ok, timed = pcall(give, i, n, done) end
  for _, where in ipairs(ok and timed or {}) do done[where], count = RELEASED, count + 1 end
  if 2 * count == n - 2 then return {'ALL'} end
  return each('release', i, n, 2, brief, done)
end

-- Run the operations, from position i of ARGV on. brief: the short way is allowed.
local function work(i, brief)
  while ARGV[i] do
    local op, n, r = ARGV[i], tonumber(ARGV[i + 1]), nil
    i = i + 2
    if op == 'acquire' then
      r = acquisition(i, n, brief)
    elseif op == 'release' then
      r = giving(i, n, brief)
    elseif op == 'check' then
      r = each(op, i, n, 1)
    else
      r = long(op, i)
    end
    answers[#answers + 1] = r
    i, asked, checked = i + n, nil, nil
  end
  return answers
end

-- Whether the generation of an identity began with data that may lack the newest writes: see
-- marker.lua.
local function lossy(identity)
  return string.find(identity, '^%S*%.[rp] ') ~= nil
end

-- Whether the server was a replica since that identity was greeted, and became master again: it
-- dropped what its own master did not have, or lacks what that one granted. A script survives
-- that. So does a function, unless the replica had to load all data, and its functions with it.
local function followed(identity)
  local ok, text = pcall(call, 'INFO', 'replication')
  if not ok or type(text) ~= 'string' then return false end -- hello cannot read it either
  local second = string.match(text, 'master_replid2:(%w+)')
  if not second or not string.find(second, '[^0]') then return false end
  return string.match(text, 'master_replid:(%w+)') ~= string.match(identity, '/(%w+)$')
end

local OFTEN = 50000 -- us; much less than a server that takes over waits before it grants

-- Whether hello must be called first. INFO is slow, so a function does not ask each time.
local function unmet(identity, remembers)
  if not remembers then return followed(identity) end
  local checked = greeted[identity]
  if not checked then return true end
  if now >= checked and now < checked + OFTEN then return false end
  if followed(identity) then return true end
  greeted[identity] = now
  return false
end

-- What the short way needs of the marker. It seldom changes.
local function reading(text)
  local till, long, seen, born, since, identity = string.match(text, '^hf5 1 (%d+) (%d+) (%d+) (%d+) (%d+) (%S+ %S+) [01]$')
  return {text = text, till = tonumber(till), longest = tonumber(long), seen = tonumber(seen), born = tonumber(born),
    from = tonumber(since), identity = identity}
end

-- The end of the client's quarantine, by the marker.
local function ending(m)
  if ARGV[2] == '-' then return 0 end
  return math.max(m.till, m.from + ARGV[2] * 1000)
end

local read = {}

-- One exclusive lease of a session, alone in its execution, whose lock is free: without what all
-- else costs. It reads what shows that the data is complete and that the session lives, and both
-- forms of the lock. Returns the answer, the token and the time. met is the number of records that were in
-- the way: of the lock, or of the end of the lease. The first command has a missing key: see execute.
local function takeone(remembers)
  local t, name, lease = termsOf(ARGV[5]), ARGV[6], ARGV[7]
  if t.ttl > 0 or t.mode ~= 'x' then return nil end
  met = call('EXISTS', STREAM, T .. 'l:' .. name, T .. 'd:' .. lease)
  if met > 0 or not lives(t.sid) then return nil end
  local text = call('GET', KEY)
  if not text then return nil end
  if text ~= read.text then read = reading(text) end
  if read.identity ~= ARGV[1] or now < read.born or ending(read) > now then return nil end
  if isthin(name) or unmet(ARGV[1], remembers) then return nil end
  local token = tokens(1)
  if not token then return nil end
  token = num(token)
  call('ZADD', THIN, '0', name .. '\n' .. lease .. t.head .. token .. '\n' .. instant .. t.tail)
  return token .. ' ' .. instant
end

-- remembers: this is a function, and what is defined here stays until the process ends.
local function execute(remembers)
  if remembers then served = served or {} end
  if ARGV[3] == 'acquire' and ARGV[4] == '3' and not ARGV[8] and not full then
    local ok, r = pcall(takeone, remembers)
    if ok and r then return r end
  end
  -- The last of these keys never exists. While a slot is migrating to another server of a
  -- Cluster, a program can use the keys that are still here, until it comes to one that is
  -- not. With a missing key in its first command it fails before it has changed anything.
  local known = call('MGET', KEY, STREAM, NEVER)
  local text = known[1]
  watched = known[2]
  if ARGV[3] == 'hello' then
    local welcome = library().hello(5)
    greeted[welcome[2]] = now
    answers[2] = welcome
    till, quarantine = marker.till, ending(marker)
    loss = lossy(marker.generation .. ' ') and marker.born or 0
    clean = library().sweep(200)
    return work(5 + tonumber(ARGV[4]), false)
  end
  if not text then return {'MARKER'} end
  if text ~= read.text then read = reading(text) end
  if not read.till then library().parse(text) end
  if read.identity ~= ARGV[1] then return {'MARKER'} end
  if unmet(read.identity, remembers) then return {'MARKER'} end
  till, quarantine, longest, seen_at = read.till, ending(read), read.longest, read.seen
  if lossy(read.identity) then loss = read.born end
  if now < read.born then
    marker = library().parse(text)
    library().rebase()
    till, quarantine = marker.till, ending(marker)
    if loss > 0 then loss = marker.born end
  end
  local brief = not (watched or full or quarantine > now or till > now) and call('ZCOUNT', X, '-inf', instant) == 0 -- nothing is due
  if not brief then -- everything goes the long way
    clean = library().sweep(200)
  end
  return work(3, brief)
end
