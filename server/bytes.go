package server

import (
	"slices"
	"time"
)

// bucket bounds the bytes of the answers to one client. It holds the bytes of one second. An answer is charged
// when it is written, because its size is not known before: the bucket may be below zero.
type bucket struct {
	perSecond int
	zeroAt    time.Time // when the bucket is at zero; it is full a second later
}

// mostOwed bounds how far requests that are never refused take a bucket below zero, as the time to refill it. A stream
// with more events than its client may be sent would otherwise keep the client out for hours after it has ended.
const mostOwed = 10 * time.Second

// charge takes n bytes from the bucket. With a bound, they take it at most mostOwed below zero.
func (b *bucket) charge(n int, bound bool, now time.Time) {
	took := time.Duration(float64(n) / float64(b.perSecond) * float64(time.Second))
	before := latest(b.zeroAt, now.Add(-time.Second))
	b.zeroAt = before.Add(took)
	if most := latest(before, now.Add(mostOwed)); bound && b.zeroAt.After(most) {
		b.zeroAt = most
	}
}

// owes returns how long the bucket will be below zero. 0 or less: it is not.
func (b *bucket) owes(now time.Time) time.Duration { return b.zeroAt.Sub(now) }

// full reports whether the bucket is as a new one.
func (b *bucket) full(now time.Time) bool { return b.owes(now) <= -time.Second }

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// wrote charges the client for a part of an answer.
func (c *client) wrote(n int, v Verb) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bytes == nil {
		return
	}
	// The others are refused while the bucket is below zero; a stream is so at its start only.
	unrefused := slices.Contains([]Verb{Renew, Release, RenewMany, Batch, Status, Watch}, v)
	c.bytes.charge(n, unrefused, time.Now())
}

// owes returns how long the client's bucket will be below zero, and how many bytes it gets in a second.
func (c *client) owes() (time.Duration, int) {
	if c == nil {
		return 0, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bytes == nil {
		return 0, 0
	}
	return c.bytes.owes(time.Now()), c.bytes.perSecond
}

// checkBytes refuses a request for something new while the client's bucket is below zero.
func (s *Server) checkBytes(r *request) error {
	left, most := r.client.owes()
	if left <= 0 {
		return nil
	}
	over := s.overQuota("bytes of answers that this client may be sent in a second: %d", most)
	over.after = left
	return over
}
