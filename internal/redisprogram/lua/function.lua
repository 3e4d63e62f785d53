-- A function is refused as a whole when the memory is full, unless it says that it may
-- run all the same. Then the client calls the second, which adds nothing.
redis.register_function('NAME', function(keys, args)
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
