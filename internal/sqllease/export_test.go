package sqllease

// Decode decodes a notification and returns the number of its entries.
func Decode(payload string) int {
	look, granted, _ := decodeLetter(payload)
	return len(look.leases) + len(look.sessions) + len(granted)
}
