package server

import (
	"context"
	"time"

	"github.com/holdfast-io/holdfast/observe"
)

// lane bounds how many requests of a kind are served at once.
type lane struct {
	slots chan struct{} // one value for each request inside
	quota observe.Quota
	// patience is how long a request waits for a slot before it is shed.
	patience time.Duration
}

// lanes are apart, so that an overload in one leaves the others alone. Those who
// hold locks have their own, and it waits where the others shed: a renewal that is
// a little late is better than one that is refused.
type lanes struct{ acquires, reads, streams, holders *lane }

func newLanes(l Limits) *lanes {
	return &lanes{
		acquires: &lane{make(chan struct{}, l.Acquires), observe.QuotaAcquires, 0},
		reads:    &lane{make(chan struct{}, l.Reads), observe.QuotaReads, 100 * time.Millisecond},
		streams:  &lane{make(chan struct{}, l.Events), observe.QuotaStreams, 0},
		holders:  &lane{make(chan struct{}, l.Holders), observe.QuotaHolders, 5 * time.Second},
	}
}

func (l *lanes) acquiring() *lane { return l.acquires }
func (l *lanes) reading() *lane   { return l.reads }
func (l *lanes) streaming() *lane { return l.streams }
func (l *lanes) holding() *lane   { return l.holders }

// enterNow takes a slot, and reports whether there was one.
func (l *lane) enterNow() bool {
	select {
	case l.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

// enter takes a slot, and reports whether there was one in time.
func (l *lane) enter(ctx context.Context) bool {
	if l.enterNow() {
		return true
	}
	if l.patience == 0 {
		return false
	}
	t := time.NewTimer(l.patience)
	defer t.Stop()
	select {
	case l.slots <- struct{}{}:
		return true
	case <-t.C:
		return false
	case <-ctx.Done():
		return false
	}
}

func (l *lane) leave() { <-l.slots }
