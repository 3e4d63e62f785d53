package backend

import "crypto/rand"

// LeaseID names one acquisition. The client makes it up before it asks, so that
// the same question asked twice is one acquisition. Knowing it is what allows a
// renewal or a release.
type LeaseID string

// SessionID names the liveness of one client on one backend.
type SessionID string

// NewLeaseID makes a lease ID with 128 bits or more of randomness.
func NewLeaseID() LeaseID { return LeaseID(rand.Text()) }

// NewSessionID makes a session ID with 128 bits or more of randomness.
func NewSessionID() SessionID { return SessionID(rand.Text()) }
