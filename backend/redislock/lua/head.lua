-- Holdfast on Redis: one script, made of the files of this folder in the order
-- head, state, line, sweep, marker, acquire, release, hello, session, admin, main. It
-- runs a batch of operations for one partition. The protocol is written down in doc.go.
--
-- KEYS[1]  the marker of the partition: "{tag}:m". All other keys are made from the
--          tag, so that they share its hash slot.
-- ARGV     see main.lua
--
-- Times are the server's, in microseconds. Numbers stay below 2^53, where a double
-- counts exactly; they are written with %.0f, because tostring rounds them.

local call = redis.call
local T = string.sub(KEYS[1], 1, -2)
local X = T .. 'x' -- zset: what lives, by the instant it ends
local N = T .. 'n' -- zset: the names of the locks that are held or waited for
local TOKENS = T .. 'f' -- hash: the greatest token of each lock; it outlives the lock

local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local instant = string.format('%.0f', now)
local clean = true -- nothing that has ended is still on record
local quarantine = 0 -- nothing is granted before this instant
local marker -- what the marker says; marker.lua
local longest, seen_at -- of the marker

local function num(n)
  return string.format('%.0f', n)
end

-- The short way: locks that nobody has and nobody wants are taken, or given back, as
-- almost all are almost always. It does what acquire.lua and release.lua do, no more and
-- no less, for many operations at once: what is read and written in common is so once
-- for all of them, because a call of the server is what costs. An operation that is out
-- of the ordinary gets no answer here, and takes the long way afterwards: what is done
-- here is of different locks, so their order does not matter. Defining the functions of
-- the long way costs as much as everything that is done here for one operation.

local list = {} -- where in ARGV each operation begins
local answers = {'OK'} -- and then one for each of list
local ended -- by session: whether it has; what was asked once need not be asked again

local function over(sid)
  if ended[sid] == nil then
    local e = call('ZSCORE', X, 's:' .. sid)
    ended[sid] = not e or tonumber(e) <= now
  end
  return ended[sid]
end

-- Add to a list that is made when it is first needed.
local function collect(lists, key, a, b)
  local l = lists[key]
  if not l then
    l = {}
    lists[key] = l
  end
  l[#l + 1] = a
  if b then l[#l + 1] = b end
end

-- Those of some acquires whose locks are free, and the keys of these.
local function unheld(some)
  local keys = {}
  for j, k in ipairs(some) do keys[j] = T .. 'l:' .. ARGV[list[k] + 2] end
  if call('EXISTS', unpack(keys)) == 0 then return some, keys end
  local those, theirs = {}, {}
  for j, k in ipairs(some) do
    if call('EXISTS', keys[j]) == 0 then
      those[#those + 1] = k
      theirs[#theirs + 1] = keys[j]
    end
  end
  return those, theirs
end

local function take(some)
  local keys
  some, keys = unheld(some)
  if #some == 0 then return end
  local names, tombs = {}, {}
  for j, k in ipairs(some) do
    local i = list[k] + 2
    names[j], tombs[j] = ARGV[i], T .. 'd:' .. ARGV[i + 1]
  end
  local buried, last = call('MGET', unpack(tombs)), call('HMGET', TOKENS, unpack(names))
  local tokens, held, sessions, lives = {}, {}, {}, {}
  local granted, theirs = {}, {}
  for j, k in ipairs(some) do
    local i = list[k] + 2
    local sid, before, token = ARGV[i + 2], 0, instant
    if last[j] then before = string.find(last[j], '^%d+$') and tonumber(last[j]) end
    if before and before >= now then token = num(before + 1) end
    if before and before < now + 1000000 and not buried[j] and (sid == '' or not over(sid)) then
      local name, lease, ttl = names[j], ARGV[i + 1], ARGV[i + 3]
      granted[#granted + 1] = k
      theirs[#granted] = keys[j]
      tokens[#tokens + 1] = name
      tokens[#tokens + 1] = token
      held[#held + 1] = 0
      held[#held + 1] = name
      if ttl ~= '0' then
        lives[#lives + 1] = num(now + ttl * 1000)
        lives[#lives + 1] = 't:' .. lease .. ':' .. name
      else
        collect(sessions, sid, lease, name)
      end
    end
  end
  if #granted == 0 then return end
  -- When the memory is full the first write is refused, and those after it never are.
  call('HSET', TOKENS, unpack(tokens))
  for sid, leases in pairs(sessions) do call('HSET', T .. 's:' .. sid, unpack(leases)) end
  if #lives > 0 then call('ZADD', X, unpack(lives)) end
  call('ZADD', N, unpack(held))
  for j, k in ipairs(granted) do
    local i = list[k] + 2
    local token = tokens[2 * j]
    call('HSET', theirs[j], '@', ARGV[i + 9], ARGV[i + 1], ARGV[i + 7] .. token .. '\n' .. instant .. ARGV[i + 8])
    answers[k + 1] = {'G', tonumber(token), now, ARGV[i + 3] * 1000, '-'}
  end
end

local ALONE = '1 1 0 0 0 0 0' -- the summary of a lock that one has, exclusively

local function give(some)
  local keys, names, sessions, lives, given = {}, {}, {}, {}, {}
  for _, k in ipairs(some) do
    local i = list[k] + 2
    local name, lease = ARGV[i], ARGV[i + 1]
    local key = T .. 'l:' .. name
    local got = call('HMGET', key, '@', lease)
    local rec, sid = got[2], ARGV[i + 3] .. '\n'
    -- One lease is out, of this session, and nobody waits.
    if rec and string.sub(rec, 1, #sid) == sid and (got[1] == ALONE or string.find(got[1] or '', '^1 %d %d+ %d+ %d+ 0 %d+$')) then
      -- What is searched for can stand nowhere else: neither times nor permits are 0, and
      -- nothing of a record ends after its note.
      local untimed = string.find(rec, '\n0\n0\n-\n', #sid, true)
      if untimed or string.find(rec, '\n1\n0\n-\n', #sid, true) then
        given[#given + 1] = k
        keys[#keys + 1] = key
        names[#names + 1] = name
        if untimed then
          collect(sessions, ARGV[i + 3], lease)
        else
          lives[#lives + 1] = 't:' .. lease .. ':' .. name
        end
      end
    end
  end
  if #given == 0 then return end
  for sid, leases in pairs(sessions) do call('HDEL', T .. 's:' .. sid, unpack(leases)) end
  if #lives > 0 then call('ZREM', X, unpack(lives)) end
  call('ZREM', N, unpack(names))
  call('DEL', unpack(keys))
  for _, k in ipairs(given) do answers[k + 1] = {'OK'} end
end

-- Answer what is ordinary among the operations from first on, as far as they are of
-- different locks and leases. Returns the last that was looked at, or less than first.
local function ordinary(first)
  local names, leases, takes, gives, last = {}, {}, {}, {}, first - 1
  for k = first, #list do
    local i = list[k]
    local op, name, lease = ARGV[i], ARGV[i + 2], ARGV[i + 3]
    if op ~= 'acquire' and op ~= 'release' or names[name] or leases[lease] then break end
    names[name], leases[lease], last = true, true, k
    if op == 'release' then
      if ARGV[i + 4] == '0' then gives[#gives + 1] = k end -- else it is to be remembered
    elseif ARGV[i + 7] == '0' then -- reentrant ones look who is there
      local ttl = tonumber(ARGV[i + 5])
      if ttl <= longest and (ttl == 0 or now - seen_at <= longest * 125) then takes[#takes + 1] = k end -- else it is to be noted
    end
  end
  -- What fails has written nothing but what it may write again.
  if #takes > 0 then pcall(take, takes) end
  if #gives > 0 then pcall(give, gives) end
  return last
end

local watched -- does anybody watch the events?

-- The long way: the files from here to main.lua.
local function library()

