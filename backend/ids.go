package backend

import "crypto/rand"

// LeaseID names one acquisition. The client makes it before the first request, so that a repeated
// request is the same acquisition. Knowing the ID is what permits a renewal or a release.
type LeaseID string

// SessionID names the session of one client on one backend.
type SessionID string

// NewLeaseID returns a lease ID with 128 bits or more of randomness.
func NewLeaseID() LeaseID { return LeaseID(rand.Text()) }

// NewSessionID returns a session ID with 128 bits or more of randomness.
func NewSessionID() SessionID { return SessionID(rand.Text()) }
