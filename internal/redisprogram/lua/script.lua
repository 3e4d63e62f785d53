
begin(KEYS, _G.ARGV, false) -- the program has an ARGV of its own
return execute(false)
