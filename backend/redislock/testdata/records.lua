-- ARGV[1]: the prefix of a partition. ARGV[2]: 'jumped' if the clock ever did. Returns what its records contradict each
-- other in: nothing, between two requests.
local T = ARGV[1]
local jumped = ARGV[2] == 'jumped'
local bad = {}
local function B(...) bad[#bad+1] = table.concat({...}, ' ') end
local c = redis.call('TIME')
local now = c[1]*1000000 + c[2]
local S = '<I4I1I4I4I4I4d'
local X = T..'x'
local function score(m) local s = redis.call('ZSCORE', X, m) return s and tonumber(s) end
local till = 0
local m = redis.call('GET', T..'m')
if m then till = tonumber(string.match(m, '^hf6 1 (%d+)')) end
local thin = {}
for _, mem in ipairs(redis.call('ZRANGE', T..'t', 0, -1)) do
  local name, lease, sid, permits, token, since, ttl = string.match(mem, '^([^\n]*)\n([^\n]*)\n([^\n]*)\nx\n(%d+)\n(%d+)\n(%d+)\n(%d+)\n')
  if not name then B('thin unreadable', mem) else
    if thin[name] then B('two thin', name) end
    thin[name] = lease
    if redis.call('EXISTS', T..'l:'..name) == 1 then B('thin and fat', name) end
    if ttl ~= '0' and not score('t:'..lease..':'..name) then B('thin timed without X', name, lease) end
  end
end
local f = tonumber(redis.call('GET', T..'f') or '0')
local heldby = {}
local waitby = {}
for _, key in ipairs(redis.call('KEYS', T..'l:*')) do
  local name = string.sub(key, #T + 3)
  local sum = redis.call('HGET', key, '@')
  if not sum or #sum ~= struct.size(S) then B('no summary', key) else
    local n, x, used, shared, limit, queued, seq = struct.unpack(S, sum)
    if n + queued == 0 then B('empty lock', name) end
    if not redis.call('ZSCORE', T..'n', name) then B('not in n', name) end
    local all = redis.call('HGETALL', key)
    local rn, rx, rused, rsh = 0, 0, 0, 0
    local toks = {}
    for i = 1, #all, 2 do if all[i] ~= '@' then
      local c = cmsgpack.unpack(all[i+1])
      rn = rn + 1
      if c.mode == 'x' then rx = 1 else rused = rused + c.permits; rsh = rsh + 1 if c.limit ~= limit then B('limit', name) end end
      if toks[c.token] then B('same token', name) end
      toks[c.token] = true
      if c.token > f then B('token above f', name) end
      heldby[all[i]] = name
      if c.ttl == 0 then
        if redis.call('HGET', T..'s:'..c.sid, all[i]) ~= name then B('holder not in session', name, all[i]) end
        local e = score('s:'..c.sid)
        -- A waiter is granted only while its session lives. 0: that is being ended in parts.
        if e and e > 0 and c.flag == 'w' and c.since >= e and not jumped then B('granted too late', name, all[i], c.since - e) end
      else
        local e = score('t:'..all[i]..':'..name)
        if not e then B('timed holder without X', name, all[i]) end
      end
    end end
    if rn ~= n or rx ~= x or rused ~= used then B('summary', name, n, rn, x, rx, used, rused) end
    if x == 1 and n ~= 1 then B('two exclusive', name, n) end
    if limit > 0 and x == 0 and used > limit then B('over limit', name) end
    local q = redis.call('ZRANGE', T..'q:'..name, 0, -1)
    if #q ~= queued or redis.call('HLEN', T..'w:'..name) ~= queued then B('queue size', name, #q, redis.call('HLEN', T..'w:'..name), queued) end
    for k, lease in ipairs(q) do
      local rec = redis.call('HGET', T..'w:'..name, lease)
      if not rec then B('no waiter rec', name, lease) else
        local c = cmsgpack.unpack(rec)
        waitby[lease] = name
        if c.mode == 's' then rsh = rsh + 1 if c.limit ~= limit then B('limit', name) end end
        local e = score('s:'..c.sid)
        if e and redis.call('HGET', T..'s:'..c.sid, lease) ~= name then B('waiter not in session', name, lease) end
        if not e then B('waiter without session', name, lease) end
        -- The end of a quarantine is not an event: the next request for the lock moves a queue that is older. So it is when a
        -- clock that was far behind the last token, and granted nothing, catches up.
        if k == 1 and till <= c.since and not jumped and e and e > now + 1000000 then
          local fit = n == 0 or (c.mode ~= 'x' and x == 0 and (limit == 0 or used + c.permits <= limit))
          if fit then B('HANG head fits', name, lease, n) end
        end
      end
    end
    if rsh ~= shared then B('shared', name, rsh, shared) end
    if shared == 0 and limit ~= 0 then B('limit without shared', name) end
  end
end
for _, name in ipairs(redis.call('ZRANGE', T..'n', 0, -1)) do if redis.call('EXISTS', T..'l:'..name) == 0 then B('n without lock', name) end end
for _, p in ipairs({'q:', 'w:'}) do for _, key in ipairs(redis.call('KEYS', T..p..'*')) do
  if redis.call('EXISTS', T..'l:'..string.sub(key, #T+3)) == 0 then B('orphan', key) end end end
for _, key in ipairs(redis.call('KEYS', T..'s:*')) do
  local sid = string.sub(key, #T+3)
  local e = score('s:'..sid)
  if not e then B('session without X', sid) end
  local all = redis.call('HGETALL', key)
  local at
  for i = 1, #all, 2 do
    if all[i] == '@' then at = true elseif all[i] ~= '!' then
      if heldby[all[i]] ~= all[i+1] and waitby[all[i]] ~= all[i+1] then B('session names what is not there', sid, all[i], all[i+1], thin[all[i+1]] or '') end
    end
  end
  if not at then B('session without @', sid) end
end
for _, key in ipairs(redis.call('KEYS', T..'u:*')) do local sid = string.sub(key, #T+3)
  if not score('s:'..sid) then B('u without X', sid, redis.call('PTTL', key)) end
  if redis.call('PTTL', key) < 0 then B('u without ttl', sid) end
end
for _, key in ipairs(redis.call('KEYS', T..'d:*')) do if redis.call('PTTL', key) < 0 then B('d without ttl', key) end end
local xs = redis.call('ZRANGE', X, 0, -1, 'WITHSCORES')
for i = 1, #xs, 2 do
  local e = tonumber(xs[i+1])
  local sid = string.match(xs[i], '^s:(.*)$')
  if sid then
    if redis.call('EXISTS', T..'s:'..sid) == 0 then B('X without session', sid) end
    local u = redis.call('EXISTS', T..'u:'..sid)
    -- While the clock was ahead the key may have expired. Then the session takes the long way until it is renewed.
    if e > now + 1000000 and u == 0 and not jumped then B('lives without u', sid) end
    -- Keys expire by the time when this script began, which may have been long before now: so the instants are compared.
    local till = redis.pcall('PEXPIRETIME', T..'u:'..sid) -- since Redis 7
    if type(till) == 'number' and till > 0 and till ~= math.floor(e / 1000 - 1) then B('u is not of X', sid, till, e) end
  else
    local lease, name = string.match(xs[i], '^t:([^:]*):(.*)$')
    if not lease then B('foreign X', xs[i]) elseif heldby[lease] ~= name and thin[name] ~= lease then B('X without timed lease', xs[i]) end
  end
end
return bad
