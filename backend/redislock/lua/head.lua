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

local FENCE_TTL = 172800000 -- ms

local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local clean = true -- nothing that has ended is still on record
local quarantine = 0 -- nothing is granted before this instant
local marker -- what the marker says; marker.lua
local longest, seen -- of the marker

local function num(n)
  return string.format('%.0f', n)
end

-- The short way: a lock that nobody has and nobody wants is taken, or given back, as
-- almost all are almost always. These two do what acquire.lua and release.lua do, no
-- more and no less, in one straight line; where anything is different they return nil
-- before the first write, and the long way is taken. Defining the functions of the long
-- way costs as much as everything that is done here.

local function take(i)
  if ARGV[i + 10] == '1' then return nil end -- reentrant
  local name, lease, sid, timed, ttl = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4])
  if timed == '1' and (ttl > longest or now - seen > longest * 125) then return nil end -- to be noted
  local key, f = T .. 'l:' .. name, T .. 'f:' .. name
  if call('HGET', key, '@') then return nil end
  local got = call('MGET', f, T .. 'd:' .. lease)
  if got[2] then return nil end
  if sid ~= '' then
    local e = call('ZSCORE', X, 's:' .. sid)
    if not e or tonumber(e) <= now then return nil end
  end
  local token = now
  if got[1] then
    local last = tonumber(got[1])
    if not last or last >= now + 1000000 then return nil end
    if last >= now then token = last + 1 end
    call('SET', f, num(token), 'PX', FENCE_TTL)
  elseif not call('SET', f, num(token), 'PX', FENCE_TTL, 'NX') then
    return nil -- a key of another type
  end
  local mode, permits, text = ARGV[i + 5], ARGV[i + 7], num(token)
  call('HSET', key, '@', mode == 'x' and '1 1 0 0 0 0 0' or '1 0 ' .. permits .. ' 1 ' .. ARGV[i + 6] .. ' 0 0',
    lease, sid .. '\n' .. mode .. '\n' .. permits .. '\n' .. text .. '\n' .. num(now) .. '\n' .. timed .. '\n0\n-\n' ..
      ARGV[i + 12] .. '\n' .. ARGV[i + 8] .. '\n' .. ARGV[i + 9])
  local left = 0
  if timed == '1' then
    left = ttl * 1000
    call('ZADD', X, num(now + left), 't:' .. lease .. ':' .. name)
  else
    call('HSET', T .. 's:' .. sid, lease, name)
  end
  call('ZADD', N, 0, name)
  return {'G', token, now, left, '-'}
end

local function give(i)
  local name, lease = ARGV[i], ARGV[i + 1]
  if ARGV[i + 2] ~= '0' then return nil end -- to be remembered
  local key = T .. 'l:' .. name
  local got = call('HMGET', key, '@', lease)
  if not got[2] or not string.find(got[1] or '', '^1 %d %d+ %d+ %d+ 0 %d+$') then return nil end
  local sid, timed = string.match(got[2], '^([^\n]*)\n[xs]\n%d+\n%d+\n%d+\n([01])\n')
  if timed == '0' then
    call('HDEL', T .. 's:' .. sid, lease)
  elseif timed == '1' then
    call('ZREM', X, 't:' .. lease .. ':' .. name)
  else
    return nil
  end
  call('DEL', key)
  call('ZREM', N, name)
  return {'OK'}
end

local watched -- does anybody watch the events?

-- The long way: the files from here to main.lua.
local function library()

