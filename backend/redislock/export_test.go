package redislock

// Internals that the tests look at.
var (
	ParsePush  = parsePush
	ParseEvent = parseEvent
)
