-- Holdfast on Redis: one program, which runs a batch of operations for one partition. The protocol is described in doc.go.
-- The program is made of these files, in this order, and then function or script:
--   head     times, tokens
--   marker   whether this is all of the data, and the quarantine
--   short    locks that are free: almost all operations end here
--   state    a lock, a lease and a session, as they are on record
--   queue    who is next: grants and hand-overs
--   sweep    what has ended is removed
--   acquire, release, hello, session, admin: the operations
--   main     what a request is and how it is run: to be read first
--
-- KEYS[1]  the marker of the partition: "{tag}:m". All other keys are built from the
--          tag, so that they share its hash slot.
-- ARGV     see main.lua
--
-- Times are the server's, in microseconds. Numbers stay below 2^53, where a double
-- counts exactly. They are written with %d, because tostring rounds them. Constants that are sent
-- often are strings: Redis prints a number slowly.
--
-- A function of the server is loaded once, and what is defined here stays from one
-- execution to the next: begin sets everything that belongs to one execution. A script
-- runs from its first line on every call.

local function num(n)
  return string.format('%d', n)
end

-- Of the partition.
local KEY -- of the marker
local T -- the prefix of all keys
local X -- zset: the live sessions and timed leases, by the instant they end
local N -- zset: the names of the locks that are held or waited for, except thin ones
local THIN -- zset: the thin locks
local LAST -- the greatest token so far, of all locks
local STREAM -- the name of the stream of events, while there is a watcher
local NEVER -- no such key exists

-- Of the process: the markers for which hello was called. nil in a script, which keeps
-- nothing from one call to the next.
local served

-- Of the execution.
local call, ARGV
local now, instant -- the time of the execution, as a number and as text
local clean -- nothing that has ended is still on record
local purged -- if not, the locks of which nothing that has ended is, by name
local quarantine -- the client is granted nothing before this instant
local watched -- the name of the stream of events, while there is a watcher
local full -- the memory of the server is full: nothing may be added
local answers -- 'OK', and then one for each operation
local checked -- the lock that check read last in this operation
local tried -- takeone could not take the lock

local function begin(keys, args, is_full)
  call, ARGV, full = redis.call, args, is_full
  if KEY ~= keys[1] then
    KEY = keys[1]
    T = string.sub(KEY, 1, -2)
    X, N, THIN, LAST, STREAM, NEVER = T .. 'x', T .. 'n', T .. 't', T .. 'f', T .. 'v', T .. '-'
  end
  local clock = call('TIME')
  -- The microseconds come without leading zeros.
  instant = clock[1] .. string.sub('00000' .. clock[2], -6)
  now = tonumber(instant)
  clean, quarantine, watched = true, 0, nil
  answers, checked, tried = {'OK'}, nil, false
end

local OK = {'OK'} -- the answer of what worked

local HOUR = 3600000000

local function foreign(key)
  error({err = 'HFFOREIGN ' .. key})
end

local LAG = 50000 -- us

local issued = {} -- the last token of each partition since hello, in this process

-- Reserve count new tokens, a number or its text, and return the first. Each is greater than every token before it, of any lock, and not far
-- behind the clock, so that tokens also grow when the last ones were lost, or the counter is an old copy. The first one
-- after hello is not behind it at all, nor is any in a script, which knows none before. The result is nil when the clock
-- is far behind the last token: then a token could not be trusted to grow after a loss.
local function tokens(count)
  local last = redis.pcall('INCRBY', LAST, count)
  if type(last) == 'table' then
    if string.find(last.err, 'overflow') then return nil end
    if string.find(last.err, '^WRONGTYPE') or string.find(last.err, 'integer') then foreign(LAST) end
    error(last)
  end
  if last > now + HOUR then return nil end
  local known = issued[LAST]
  local floor = known and math.max(known, now - LAG) or now
  if last - count < floor then
    last = math.max(now, floor) + count
    call('SET', LAST, num(last))
  end
  issued[LAST] = last
  return last - count + 1
end

-- The terms of acquire, which many leases have in common: see acquire.lua. They are one argument, because each has its
-- cost. A thin lock has its lease, the token and the time between head and tail.
local terms = {}

local function termsOf(text)
  if text ~= terms.text then
    local sid, ttl, limit, wait, mode, permits, chan, owner, note =
      string.match(text, '^([^\n]*)\n(%d+)\n(%d+)\n([01])\n([xs])\n(%d+)\n([^\n]*)\n([^\n]*)\n(.*)$')
    if not note then error({err = 'ERR the terms of an acquire'}) end
    terms = {text = text, sid = sid, ttl = tonumber(ttl), limit = tonumber(limit), wait = wait == '1', mode = mode,
      permits = tonumber(permits), chan = chan, owner = owner, note = note,
      head = '\n' .. sid .. '\nx\n' .. permits .. '\n', tail = '\n' .. ttl .. '\n-\n' .. chan .. '\n' .. owner .. '\n' .. note}
  end
  return terms
end
