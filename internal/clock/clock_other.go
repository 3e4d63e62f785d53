//go:build !linux

package clock

// suspendedTime returns nil: suspension cannot be measured here.
func suspendedTime() asleepFunc { return nil }
