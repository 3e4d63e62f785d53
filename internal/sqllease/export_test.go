package sqllease

// Decode decodes a notification and returns the number of its entries.
func Decode(payload string) int {
	look, granted, _ := decodeNotification(payload)
	return len(look.Leases) + len(look.Sessions) + len(granted)
}

// Listeners returns the number of sessions whose losses are received here.
func (b *Leases) Listeners() int {
	_, n := b.calls.Len()
	return n
}
