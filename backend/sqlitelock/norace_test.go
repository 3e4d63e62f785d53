//go:build !race

package sqlitelock_test

import "time"

// suiteTTL is long enough for a busy machine.
const suiteTTL = time.Second
