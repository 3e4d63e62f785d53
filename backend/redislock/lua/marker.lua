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

local FORMAT = 'hf5 1'

-- Fails, before anything is done, for a marker of another format, or that is none.
local function parse(text)
  local format, till, longest, seen, born, from, generation, run, durable =
    string.match(text, '^(hf%d+ %d+) (%d+) (%d+) (%d+) (%d+) ?(%d*) (%S+) (%S+) ([01])$')
  if not format then foreign(KEY) end
  if format ~= FORMAT then error({err = 'HFFORMAT ' .. format .. ' is the format of the data'}) end
  return {till = tonumber(till), longest = tonumber(longest), seen = tonumber(seen), born = tonumber(born),
    from = tonumber(from), generation = generation, run = run, durable = durable == '1'}
end

local function mark()
  call('SET', KEY, table.concat({FORMAT, num(marker.till), num(marker.longest), num(marker.seen), num(marker.born),
    num(marker.from), marker.generation, marker.run, marker.durable and '1' or '0'}, ' '))
end

-- When the clock went back to before this generation began, it is unknown how much of the
-- quarantine has passed. It starts again from now, and does not wait until the clock has
-- caught up.
local function rebase()
  if now >= marker.born then return end
  marker.till = math.max(0, marker.till - (marker.born - now))
  marker.from = math.max(0, marker.from - (marker.born - now))
  marker.born = now
  if not full then mark() end
end

-- Note a TTL in use. longest is never less than the TTL of any lease that is held: it is
-- halved only when all leases that were longer than the half have ended.
local function note(ttl)
  marker = marker or parse(call('GET', KEY))
  local m = marker
  local age = now - m.seen
  if ttl > m.longest then
    m.longest, m.seen = ttl, now
  elseif 2 * ttl > m.longest then
    if age <= m.longest * 125 then return end
    m.seen = now
  elseif age > m.longest * 1125 then
    m.longest = math.ceil(m.longest / 2)
    if ttl > m.longest then m.longest = ttl end
    m.seen = now
  else
    return
  end
  mark()
end
