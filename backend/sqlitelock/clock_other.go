//go:build !linux

package sqlitelock

import "time"

// thisHost is the wall clock: see the heading Requires of the package's doc.
func thisHost() (host, error) {
	return host{
		boot: "wall",
		now:  func() instant { return instant(time.Now().UnixNano()) },
		wall: time.Now,
	}, nil
}
