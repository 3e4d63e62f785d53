-- ARGV: generation mode, then for each operation its name, how many arguments it has,
-- and the arguments. generation: the one of the data that the client knows. mode: 'q' to
-- keep the quarantine, '-' to ignore it.
-- Answer: 'OK' and an answer for each operation; or 'MARKER' when nothing was done,
-- because the client must say hello first; or 'FORMAT'. An operation that failed is
-- answered with 'ERR', and does not take the others with it.

return {
  hello = hello,
  ['session.open'] = opensession,
  ['session.end'] = endsession,
  renew = renew,
  inspect = inspect,
  list = list,
  ['break'] = breaklock,
  watch = watch,
  ping = function() return {'OK'} end,
}

end -- rest

return {sweep = sweep, parse = parse, foreign = foreign, rest = rest, acquire = acquire, release = release, check = check}

end -- library

local ops, seldom
local function find(op)
  if ops[op] then return ops[op] end
  seldom = seldom or ops.rest()
  return seldom[op]
end

local i = 3
local known = call('MGET', KEYS[1], T .. 'v')
watched = known[2] and true

if ARGV[3] == 'hello' then
  ops = library()
  answers[2] = find('hello')(5)
  if answers[2][1] ~= 'OK' then return answers[2] end
  list[1] = 3
  i = 5 + tonumber(ARGV[4])
else
  local text = known[1]
  if not text then return {'MARKER'} end
  local till, generation
  till, longest, seen_at, generation = string.match(text, '^hf1 1 (%d+) (%d+) (%d+) %d+ (%S+) %S+ [01]$')
  if till then
    if generation ~= ARGV[1] then return {'MARKER'} end
    longest, seen_at = tonumber(longest), tonumber(seen_at)
    if ARGV[2] == 'q' then quarantine = tonumber(till) end
  end
  local first = call('ZRANGE', X, 0, 0, 'WITHSCORES')
  local due = first[2] and tonumber(first[2]) <= now
  if not till or due or watched or quarantine > now then
    ops = library()
  end
  if not till then
    marker = ops.parse(text)
    if not marker then ops.foreign(KEYS[1]) end
    return {'FORMAT', marker.format}
  end
end

if ops then
  -- Something is out of the ordinary: everything goes the long way.
  marker = marker or ops.parse(call('GET', KEYS[1]))
  if ARGV[2] == 'q' then quarantine = marker.till end
  clean = ops.sweep(200)
end

while ARGV[i] do
  list[#list + 1] = i
  i = i + 2 + tonumber(ARGV[i + 1])
end

local function long(k)
  if not ops then
    ops = library()
    marker = ops.parse(call('GET', KEYS[1]))
  end
  local at = list[k]
  local ok, r = pcall(find(ARGV[at]), at + 2)
  if not ok then
    r = {'ERR', type(r) == 'table' and r.err or tostring(r)}
  end
  return r
end

local brief = not ops -- nothing is out of the ordinary
local k = #answers -- hello has its answer
while k <= #list do
  local last = k
  if brief then
    ended = {}
    last = math.max(k, ordinary(k))
  end
  for each = k, last do
    answers[each + 1] = answers[each + 1] or long(each)
  end
  k = last + 1
end
return answers
