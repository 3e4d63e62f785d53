if _G.ARGV[1] == 'rights' then return denied(_G.ARGV) end

begin(KEYS, _G.ARGV, FULL) -- the program has an ARGV of its own
return execute(false)
