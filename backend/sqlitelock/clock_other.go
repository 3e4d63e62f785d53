//go:build !linux

package sqlitelock

import "time"

// thisHost returns the wall clock: see the heading Requires of the package's documentation.
func thisHost() (host, error) {
	return host{
		boot: "wall",
		now:  func() instant { return instant(time.Now().UnixNano()) },
		wall: time.Now,
	}, nil
}
