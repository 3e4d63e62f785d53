-- Run one operation on one lease, or on none, the long way.
local function long(what, ...)
  local ok, r = pcall(what, ...)
  if ok then return r end
  return {'ERR', type(r) == 'table' and r.err or tostring(r)}
end

-- An operation on many leases. They begin after so many arguments, and each has step
-- arguments. Returns the leases that went the short way, and the answers, without theirs. No
-- answers are returned when all went the short way.
local function each(quick, slow, t, n, after, step)
  local ok, done = pcall(quick, t, n)
  if not ok then done = nil end -- to write again what it wrote does no harm
  if done and #done * step == n - after then return done end
  local r, at = {'EACH'}, {}
  for _, i in ipairs(done or {}) do at[i] = true end
  for i = t + after, t + n - 1, step do
    r[#r + 1] = not at[i] and long(slow, t, i) or false
  end
  return done, r
end

op.acquire = function(t, n)
  if now % 64 == 0 then call('ZREMRANGEBYSCORE', N, '-inf', num(now)) end
  local _, r = each(take, acquire, t, n, 6, 4)
  local left, since = num(tonumber(ARGV[t]) * 1000), num(now)
  if not r then return {'ALL', left, since} end
  for k = 2, #r do
    r[k] = r[k] or {'G', ARGV[t + 6 + 4 * (k - 2) + 3], left, since, '0', 0}
  end
  return r
end

op.release = function(t, n)
  local _, r = each(give, release, t, n, 1, 2)
  if not r then return {'ALL'} end
  for k = 2, #r do r[k] = r[k] or {1} end
  return r
end

-- The marker shows that the node has all that it ever wrote: 'hfr2 born longest run safe'.
--   born     since when it has all of it
--   longest  the greatest max_ttl of all clients (ms): for so long after born it does not vote
--   run      the server's run ID, safe: whether in that run it wrote everything to disk
--            before it answered

-- The keys of the markers, and the identities that hello returned for them in this process.
local greeted = {}

-- hello safe first. safe: the node writes everything to disk before it answers. first: no
-- node has a marker. Then the nodes are new, or all of them were emptied while they were up.
-- This process remembers that it greeted a client before, and counts how often it was
-- emptied; a script cannot remember. remembers: see execute. Returns born, run and safe.
local function hello(born, run, safe, remembers)
  local function info(section, pattern)
    local all = told(pcall(call, 'INFO', section))
    return type(all) == 'string' and string.match(all, pattern) or nil
  end
  local id = info('server', 'run_id:(%w+)') or '-'
  local sure = ARGV[5] == '1' and info('persistence', 'aof_enabled:(%d)') == '1'
  if not born then
    born = now
    local uptime = info('server', 'uptime_in_seconds:(%d+)')
    local emptied = not remembers or greeted[KEY] or info('commandstats', 'cmdstat_flush%a+:calls')
    if ARGV[6] == '1' and uptime and not emptied then
      born = now - math.max(0, tonumber(uptime) - 1) * 1000000
    end
  elseif run ~= id and not (safe == '1' and sure) then
    born = now -- the newest writes may be lost
  end
  return born, id, sure and '1' or '0'
end

-- remembers: this is a function, and what is defined here stays until the process ends.
local function execute(remembers)
  local text = call('GET', KEY)
  local born, longest, run, safe
  if text then
    born, longest, run, safe = string.match(text, '^hfr2 (%d+) (%d+) (%S+) ([01])$')
    if not born then return {'FORMAT'} end
    born, longest = tonumber(born), tonumber(longest)
  end
  local mine, at, changed = tonumber(ARGV[1]), 4, false
  local answers = {'OK'}
  if ARGV[4] == 'hello' then
    longest = longest or mine
    born, run, safe = hello(born, run, safe, remembers)
    at, changed = 7, true
    answers[2] = run .. ' ' .. num(born)
    greeted[KEY] = answers[2]
  elseif not text or ARGV[3] ~= run .. ' ' .. num(born) or remembers and greeted[KEY] ~= ARGV[3] then
    return {'MARKER'}
  end
  if mine > longest then longest, changed = mine, true end
  if changed then call('SET', KEY, table.concat({'hfr2', num(born), num(longest), run, safe}, ' ')) end
  complete = born
  if ARGV[2] == 'q' then quarantine = born + longest * 1000 end
  while ARGV[at] do
    local n = tonumber(ARGV[at + 1])
    answers[#answers + 1] = long(op[ARGV[at]], at + 2, n)
    at = at + 2 + n
  end
  return answers
end
