-- When the memory is full the server refuses a function, or a script, as a whole, unless it has the flag allow-oom.
-- Then the client calls the second one, which adds nothing.
redis.register_function('NAME', function(keys, args)
  if args[1] == 'rights' then return denied(args) end
  begin(keys, args, false)
  return execute(true)
end)
redis.register_function{
  function_name = 'NAME_full',
  flags = {'allow-oom'},
  callback = function(keys, args)
    begin(keys, args, true)
    return execute(true)
  end,
}
