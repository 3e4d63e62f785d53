package redislock

// Internals that the tests look at.
var (
	ParsePush  = parsePush
	ParseEvent = parseEvent
)

// ParseURL checks a URL without connecting.
func ParseURL(raw string) error {
	_, err := parseURL(raw, Config{})
	return err
}
