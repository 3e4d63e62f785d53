-- A call whose first argument is "rights" asks which of the commands in the other arguments the user may
-- not send. Each is a text, with spaces between its words. Nothing is executed, so that the answer needs no
-- right besides the call. A server that cannot tell, such as Redis before 7, denies none.
local function denied(args)
  local out = {}
  for k = 2, #args do
    local words = {}
    for word in string.gmatch(args[k], '%S+') do words[#words + 1] = word end
    local ok, may = pcall(redis.acl_check_cmd, unpack(words))
    if ok and not may then out[#out + 1] = args[k] end
  end
  return out
end

-- The results of a pcall of a command that only tells something about the server. What the user may not ask
-- is no answer: the program fails then. It would take the server for another one, and end what others hold.
local function told(ok, answer)
  if ok then return answer end
  local text = type(answer) == 'table' and answer.err or tostring(answer)
  if string.find(text, 'NOPERM') or string.find(text, 'ACL failure') or string.find(text, "can't run this command") then error(answer) end
  return nil
end

-- Whether a stands before b in the order of Redis, by bytes. The operator compares by the
-- locale of the server.
local function precedes(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

