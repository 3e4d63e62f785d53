//go:build race

package sqlitelock_test

import "time"

// suiteTTL is longer under the race detector, which makes SQLite, compiled to Go, more than ten
// times slower.
const suiteTTL = 4 * time.Second
