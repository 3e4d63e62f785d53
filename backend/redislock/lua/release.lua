-- release abandon sid (name lease)... An answer for each: -> OK | LOST
-- abandon: 0 no; 1 the lease must never be granted, and it is no error if it is not there;
-- 2 the lease must never be granted again.
local function release(i, name, lease)
  local abandon, sid = ARGV[i], ARGV[i + 1]
  local l, c = open(name, lease)
  local w = not c and inline(l, lease)
  if c then
    vacate(l, lease, c, 'released')
  elseif w then
    quit(l, lease, w, 'L')
  end
  if abandon ~= '0' then
    bury(lease, sid ~= '' and session(sid).ttl or 0)
  end
  if c or w or abandon == '1' then return OK end
  return {'LOST'}
end
