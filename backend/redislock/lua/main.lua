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
  ping = function() return OK end,
  ready = function() return refused(quarantine) or OK end,
}

end -- define

local lib -- once it is defined

local function library()
  lib = lib or define()
  return lib
end

-- One operation, or one lease of it, the long way.
local function long(op, i, name, lease)
  local ok, r = pcall(library()[op], i, name, lease)
  if not ok then
    local text = type(r) == 'table' and r.err or tostring(r)
    r = {'ERR', text}
  end
  return r
end

-- An operation on many leases, which begin after one argument. done: the answers for
-- those that went the short way, by their position in ARGV.
local function each(op, i, n, done)
  local r = {'EACH'}
  for j = i + 1, i + n - 1, 2 do
    r[#r + 1] = done[j] or long(op, i, ARGV[j], ARGV[j + 1])
  end
  return r
end

local function acquisition(i, n, brief)
  local ok, done, first, left
  if brief and not (tried or watched) then ok, done, first, left = pcall(take, i, n) end
  if not ok then done = nil end -- to write again what it wrote does no harm
  if done and 2 * #done == n - 1 then return {'ALL', first, now, left} end
  local at = {}
  for k, where in ipairs(done or {}) do at[where] = {'T', first + k - 1, now, left} end
  return each('acquire', i, n, at)
end

local function giving(i, n)
  local done = {}
  pcall(untake, i, n, done)
  local r, all = {'EACH'}, true
  for j = i + 2, i + n - 1, 2 do
    local one = done[j]
    if not one then
      local name, lease = ARGV[j], ARGV[j + 1]
      if lease == '' then name, lease = string.match(name, '^([^\n]*)\n([^\n]*)\n') end -- it is not thin any more
      one = long('release', i, name, lease)
      all = all and one == OK
    end
    r[#r + 1] = one
  end
  return all and {'ALL'} or r
end

-- Run the operations, from position i of ARGV on. brief: the short way is allowed.
local function work(i, brief)
  while ARGV[i] do
    local op, n, r = ARGV[i], tonumber(ARGV[i + 1]), nil
    i = i + 2
    if op == 'acquire' then
      r = acquisition(i, n, brief)
    elseif op == 'release' then
      r = giving(i, n)
    elseif op == 'check' then
      r = each(op, i, n, {})
    else
      r = long(op, i)
    end
    answers[#answers + 1] = r
    i, checked = i + n, nil
  end
  return answers
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
  watched = known[2]
  if ARGV[3] == 'hello' then
    local welcome = library().hello(5)
    greeted[welcome[2]] = now
    answers[2] = welcome
    quarantine = ending()
    clean = library().sweep(200)
    return work(5 + tonumber(ARGV[4]), false)
  end
  if not known[1] then return {'MARKER'} end
  see(known[1])
  if marker.identity ~= ARGV[1] or unmet(marker.identity, remembers) then return {'MARKER'} end
  rebase()
  quarantine = ending()
  local brief = not (watched or full or quarantine > now or marker.till > now) and call('ZCOUNT', X, '-inf', instant) == 0 -- nothing is due
  if not brief then -- everything goes the long way
    clean = library().sweep(200)
  end
  return work(3, brief)
end
