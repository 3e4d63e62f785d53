-- release abandon sid (name lease)... An answer for each: -> OK | LOST
-- abandon: 0 no; 1 the lease must never be granted, and it is no error if it is not there;
-- 2 the lease must never be granted again.
local function release(i, name, lease)
  local abandon, sid = ARGV[i], ARGV[i + 1]
  local l, rec = open(name, lease)
  local found = true
  if rec then
    local h = holder(rec)
    withdraw(l, lease, h)
    event('released', name, lease, h)
    advance(l, true)
    save(l)
  else
    local w = inline(l, lease)
    if w then
      local next = behind(l, lease)
      drop(l, lease, w, 'L')
      advance(l)
      if next then nudge(l, next) end
      save(l)
    else
      found = false
    end
  end
  if abandon ~= '0' then
    bury(lease, sid ~= '' and session(sid).ttl or 0)
  end
  if found or abandon == '1' then return {'OK'} end
  return {'LOST'}
end
