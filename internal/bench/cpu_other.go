//go:build !unix

package bench

import "time"

// cpuTime returns a negative value: the CPU time is unknown here.
func cpuTime() time.Duration { return -1 }
