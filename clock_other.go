//go:build !linux

package holdfast

// suspendedTime: nothing is known of suspension here.
func suspendedTime() asleepFunc { return nil }
