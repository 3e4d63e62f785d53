-- The marker shows that the data is complete. A server that lost its data has lost the
-- marker with it, and grants nothing until the leases that it forgot have ended.
--   format partitions until longest seen born from generation run durable
-- until    leases that are forgotten may last until then, by the TTLs that were in use (us)
-- longest  no lease in use has a longer TTL (ms); seen: when such a one was last used
-- born     when this generation of the data began (us)
-- from     each client is granted nothing for its own quarantine from then on (us), nor before
--          until. It is born, or before that when the server started
-- generation a name, a dot, and why it began: 'n' the server had no data; 'l' it had
--          none, and may have lost some; 'r' it was restarted, or 'p' promoted to master,
--          and may lack the newest writes
-- run      the server's run ID, and its replication ID if it was promoted to master
-- durable  whether in that run it wrote everything to disk before it answered

local FORMAT = 'hf6 1'

local marker = {} -- as it was read, or written, last

-- Fails, before anything is done, for a marker of another format, or that is none.
local function parse(text)
  local format, till, longest, seen, born, from, generation, run, durable =
    string.match(text, '^(hf%d+ %d+) (%d+) (%d+) (%d+) (%d+) ?(%d*) (%S+) (%S+) ([01])$')
  if not format then foreign(KEY) end
  if format ~= FORMAT then error({err = 'HFFORMAT ' .. format .. ' is the format of the data'}) end
  return {text = text, identity = generation .. ' ' .. run, till = tonumber(till), longest = tonumber(longest),
    seen = tonumber(seen), born = tonumber(born), from = tonumber(from), generation = generation, run = run,
    durable = durable == '1'}
end

-- The marker is that text: it seldom changes.
local function see(text)
  if text ~= marker.text then marker = parse(text) end
end

-- Write the marker after a change.
local function mark()
  local m = marker
  m.text, m.identity = nil, m.generation .. ' ' .. m.run
  local text = table.concat({FORMAT, num(m.till), num(m.longest), num(m.seen), num(m.born), num(m.from), m.identity,
    m.durable and '1' or '0'}, ' ')
  call('SET', KEY, text)
  m.text = text
end

-- When the clock went back to before this generation began, it is unknown how much of the
-- quarantine has passed. It starts again from now, and does not wait until the clock has
-- caught up.
local function rebase()
  local m = marker
  if now >= m.born then return end
  m.till = math.max(0, m.till - (m.born - now))
  m.from = math.max(0, m.from - (m.born - now))
  m.born = now
  mark()
end

-- Note a TTL in use. longest is never less than the TTL of any lease that is held: it is
-- halved only when all leases that were longer than the half have ended.
local function note(ttl)
  local m = marker
  local age = now - m.seen
  local longest = m.longest
  if ttl > longest then
    longest = ttl
  elseif 2 * ttl > longest then
    if age <= longest * 125 then return end
  elseif age > longest * 1125 then
    longest = math.max(math.ceil(longest / 2), ttl)
  else
    return
  end
  m.longest, m.seen = longest, now
  mark()
end

local greeted = {} -- the identities that hello returned in this process, with the time of the last check: see unmet

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

-- The end of the client's quarantine.
local function ending()
  if ARGV[2] == '-' then return 0 end
  return math.max(marker.till, marker.from + ARGV[2] * 1000)
end
