package sqllease

// Decode decodes a notification and returns the number of its entries.
func Decode(payload string) int {
	look, granted, _ := decodeLetter(payload)
	return len(look.leases) + len(look.sessions) + len(granted)
}

// Listeners returns the number of sessions whose losses are received here.
func (b *Leases) Listeners() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.sessions)
}
