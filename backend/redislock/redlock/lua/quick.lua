-- The short way votes for locks without a vote, and removes the only, exclusive vote of a
-- lock, which is almost always the case. It does exactly what acquire and release do, but
-- for many leases together: what they have in common is read and written once for all of
-- them, because each call of a command has its cost. A lease that needs more than that gets
-- no answer here, and takes the long way afterwards. The order does not matter, because the
-- leases done here are of different locks.

-- The first lease of each lock in an operation, as its position in ARGV.
local function apart(from, to, step)
  local those, names = {}, {}
  for i = from, to, step do
    local name = ARGV[i]
    if not names[name] then
      names[name] = true
      those[#those + 1] = i
    end
  end
  return those
end

-- The arguments are those of acquire, from t to t + n - 1. Returns the leases that have the
-- vote: the token of each is its floor.
local function take(t, n)
  if quarantine > now or full or ARGV[t + 1] ~= 'x' then return nil end
  local all = apart(t + 6, t + n - 1, 4)
  local counters, held = {}, {}
  for k, i in ipairs(all) do counters[k] = P .. 'f:' .. ARGV[i] end
  local got = call('MGET', unpack(counters))
  -- The keys that must not exist. MGET returns nothing for a counter of another type.
  for k, i in ipairs(all) do
    held[3 * k - 2], held[3 * k - 1] = P .. 'l:' .. ARGV[i], P .. 'd:' .. ARGV[i + 1]
    held[3 * k] = got[k] and held[3 * k - 1] or counters[k]
  end
  local free = call('EXISTS', unpack(held)) == 0
  local ends = now + tonumber(ARGV[t]) * 1000
  local till, since = num(ends), num(now)
  local middle = '\n' .. ARGV[t + 1] .. '\n' .. ARGV[t + 2] .. '\n' .. ARGV[t + 3] .. '\n'
  local tail = '\n0\n' .. till .. '\n' .. since .. '\n' .. ARGV[t] .. '\n' .. ARGV[t + 4] .. '\n' .. ARGV[t + 5]
  local those, names, votes = {}, {}, {}
  for k, i in ipairs(all) do
    local floor, ctr, alone = tonumber(ARGV[i + 3]), 0, nil
    if got[k] then
      local _, ends
      ctr, _, _, _, ends = counter(ARGV[i], got[k])
      alone = ends and ends > now
    end
    -- The floor is the token: it is greater than the counter, and near the clock.
    if not alone and floor > ctr and floor >= now - HOUR and floor <= now + HOUR
      and (free or call('EXISTS', held[3 * k - 2], held[3 * k - 1], held[3 * k]) == 0) then
      local c, token, lease = #those + 1, ARGV[i + 3], ARGV[i + 1]
      those[c], names[2 * c - 1], names[2 * c] = i, till, ARGV[i]
      votes[2 * c - 1] = counters[k]
      votes[2 * c] = token .. ' ' .. lease .. '\n' .. till .. ' ' .. lease .. '\n' .. ARGV[i + 2] .. middle .. token .. tail
    end
  end
  if #those == 0 then return nil end
  call('ZADD', N, unpack(names))
  store(votes)
  return those
end

-- Publish that many leases were released. One query for the subscribers costs less than
-- notifications that no client receives.
local function tellall(channels, leases)
  local ok, ears = pcall(call, 'PUBSUB', 'NUMSUB', unpack(channels))
  for c, lease in ipairs(leases) do
    if not ok or ears[2 * c] > 0 then pcall(call, 'PUBLISH', channels[c], lease) end
  end
end

-- The arguments are those of release, from t to t + n - 1. Returns the leases that were
-- released.
local function give(t, n)
  if ARGV[t] ~= '0' then return nil end -- it has to be remembered
  local all = apart(t + 1, t + n - 1, 2)
  local keys = {}
  for k, i in ipairs(all) do keys[k] = P .. 'f:' .. ARGV[i] end
  local got = call('MGET', unpack(keys))
  local those, names, counters, channels, leases = {}, {}, {}, {}, {}
  for k, i in ipairs(all) do
    local ctr, ends, lease
    if got[k] then ctr, ends, lease = string.match(got[k], '^(%d+ [^\n]*)\n(%d+) ([^\n]*)\n') end
    if lease == ARGV[i + 1] and tonumber(ends) > now then
      local c = #those + 1
      those[c], names[c], counters[2 * c - 1], counters[2 * c] = i, ARGV[i], keys[k], ctr
      channels[c], leases[c] = P .. 'w:' .. ARGV[i], lease
    end
  end
  if #those == 0 then return nil end
  call('ZREM', N, unpack(names))
  store(counters)
  tellall(channels, leases)
  return those
end
