local function info(section, pattern)
  local text = told(pcall(call, 'INFO', section))
  return type(text) == 'string' and string.match(text, pattern) or nil
end

-- The channels of the other clients that listen now. Subscriptions outlive the data: when
-- there are some and there is no marker, the data was lost.
local function listeners(mine)
  local all = told(pcall(call, 'PUBSUB', 'CHANNELS', T .. 'c:*'))
  local others = {}
  if type(all) == 'table' then
    for _, chan in ipairs(all) do
      if chan ~= mine then others[#others + 1] = chan end
    end
  end
  return others
end

-- hello identity fresh longest synced channel unsynced -> OK identity until longest durable
--   identity    of the data that the client knows, or ''; see main.lua
--   fresh       a name for a new generation
--   longest     the longest TTL that the client has used (ms)
--   synced      the run of the server that the client saw set up to write to disk before it
--               answers, or ''
--   channel     of the client
--   unsynced    1 when the client was told that the run of the identity may lose writes. The
--               marker may lack that: where AOF was turned off, the next run reads an old one
--   durable     1 when the run writes everything to disk before it answers
local function hello(i)
  local known, fresh, longest, synced, chan = string.match(ARGV[i], '^%S*'), ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3], ARGV[i + 4]
  local unsynced = ARGV[i + 5] == '1' and string.match(ARGV[i], '^%S* ([^/]*)')
  local run = info('server', 'run_id:(%w+)') or '-'
  local durable = synced == run and info('persistence', 'aof_enabled:(%d)') == '1'
  -- A server that was promoted to master has had another replication ID. After each
  -- promotion it has only what the previous master had sent, whatever is on disk.
  local second = info('replication', 'master_replid2:(%w+)')
  local promoted = not second or string.match(second, '[^0]') ~= nil
  if promoted then
    run = run .. '/' .. (info('replication', 'master_replid:(%w+)') or '-')
  end
  -- The server started before this instant. Its uptime is in whole seconds, rounded up
  -- or down.
  local uptime = info('server', 'uptime_in_seconds:(%d+)')
  local started = uptime and now - (tonumber(uptime) - 1) * 1000000 or now
  local text = call('GET', KEY)
  if not text then
    marker = {longest = longest, seen = now, born = now, from = now, run = run, durable = durable}
    local others = listeners(chan)
    -- The server is new, or was emptied while it was up: then leases may be held by processes
    -- that do not listen. This process remembers that it had a marker, and the server counts
    -- how often it was emptied. A server that was promoted may not have been sent the marker,
    -- and one of a Cluster may have the slot of a lost master.
    local lost = promoted or #others > 0 or known ~= '' and longest > 0 or not served or served[KEY]
      or info('commandstats', 'cmdstat_flush%a+:calls') or info('cluster', 'cluster_enabled:(1)')
    marker.generation = fresh .. (lost and '.l' or '.n')
    if not lost then marker.from = math.min(started, now) end
    marker.till = marker.from + longest * 1000
    mark()
    for _, other in ipairs(others) do
      push(other, 'f')
    end
  else
    see(text)
    rebase()
    local other = marker.run ~= run and (promoted or string.match(marker.run, '^[^/]*') ~= run)
    local doubted = unsynced and known == marker.generation and unsynced ~= string.match(run, '^[^/]*')
    if other or doubted then
      -- Another process, or another server, has taken over with what it has of the data.
      if promoted or doubted or not (marker.durable and durable) then
        marker.from = promoted and now or math.min(started, now)
        marker.till = math.max(marker.till, marker.from + math.max(marker.longest, longest) * 1000)
        -- The newest writes may be missing, and a session that is there does not know which
        -- of its leases are not. So all sessions of the old generation are lost.
        marker.generation, marker.born = fresh .. (promoted and '.p' or '.r'), now
      end
      marker.run, marker.durable = run, durable
    elseif known ~= '' and known ~= marker.generation and longest > 0 then
      -- The data that the client knew ended when this generation began, or before.
      marker.from = marker.born
      marker.till = math.max(marker.till, marker.born + longest * 1000)
    end
    if marker.durable and not durable then marker.durable = false end
    mark()
  end
  if served then served[KEY] = true end
  issued[LAST] = nil
  return {'OK', marker.identity, marker.till, marker.longest, marker.durable and 1 or 0}
end
