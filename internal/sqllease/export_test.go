package sqllease

// Decode reads a letter, and tells how many things it says.
func Decode(payload string) int {
	look, granted, _ := decodeLetter(payload)
	return len(look.leases) + len(look.sessions) + len(granted)
}
