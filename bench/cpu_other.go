//go:build !unix

package bench

import "time"

// cpuTime is what this process has used so far; negative where it is not known.
func cpuTime() time.Duration { return -1 }
