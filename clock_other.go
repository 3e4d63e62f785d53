//go:build !linux

package holdfast

// suspendedTime returns nil: suspension cannot be measured here.
func suspendedTime() asleepFunc { return nil }
