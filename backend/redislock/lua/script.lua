
begin(KEYS, _G.ARGV, false) -- ARGV is the one of head.lua
return execute(false)
