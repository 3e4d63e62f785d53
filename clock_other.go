//go:build !linux

package holdfast

import "time"

// suspendedTime: nothing is known of suspension here.
func suspendedTime() func() time.Duration { return nil }
