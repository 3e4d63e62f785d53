package liveness

import "time"

// SetPhase replaces the random phase of the renewal times.
func (m *Machine) SetPhase(d time.Duration) { m.phase = d }
