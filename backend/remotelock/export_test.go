package remotelock

import "time"

// SetPoll changes how long one request stands in line.
func (b *Backend) SetPoll(d time.Duration) { b.poll = d }
