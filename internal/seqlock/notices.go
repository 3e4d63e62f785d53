package seqlock

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/holdfast-io/holdfast/backend"
)

// Notice is what a break writes for the session of its victim.
type Notice struct {
	Lease  backend.LeaseID `json:"l"`
	Reason string          `json:"r,omitempty"`
	// Cut is set in the first notice if there were older ones, which made room.
	Cut bool `json:"c,omitempty"`
}

// MaxNotices and MaxNoticeBytes bound the notices of breaks to a session. The newest are kept. The
// session finds the other breaks by itself: see Inbox.
const MaxNotices, MaxNoticeBytes = 100, 8 << 10

// Notices decodes what is written for a session. Data of another origin is no notice.
func Notices(data []byte) []Notice {
	var all []Notice
	_ = json.Unmarshal(data, &all)
	return all
}

// AddNotices returns the encoding of the old notices with fresh ones behind them. It drops as many
// of the oldest as the bounds require, but keeps the given number, whatever their size.
func AddNotices(old []byte, fresh []Notice, keep int) ([]byte, error) {
	all := slices.Concat(Notices(old), fresh)
	drop := len(all) - MaxNotices
	for {
		if drop > 0 {
			all = all[drop:]
			all[0].Cut = true
		}
		data, err := json.Marshal(all)
		if err != nil {
			return nil, fmt.Errorf("encode the notices: %w", err)
		}
		if len(data) <= MaxNoticeBytes || len(all) <= keep {
			return data, nil
		}
		drop = (len(all) - keep + 1) / 2
	}
}

// Inbox is what a session has read of its notices. The zero value is empty. Its methods are safe for
// concurrent use.
type Inbox struct {
	mu sync.Mutex // guards the fields below
	// read are the leases whose notices were read. Other leases may have been reported as missing
	// while the break that took them was in progress, so they do not show that the notices before
	// theirs were read.
	read   map[backend.LeaseID]bool
	missed bool
}

// Read records notices. If others were dropped before they were read, it calls check, which must find the
// leases that the session misses. Where check fails, the next Read calls it again.
func (x *Inbox) Read(notices []Notice, check func() error) error {
	if !x.misses(notices) {
		return nil
	}
	if err := check(); err != nil {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.missed = true
		return err
	}
	return nil
}

// misses records notices, and reports whether the session has to check its leases. Notices that are
// dropped from then on make it check again.
func (x *Inbox) misses(notices []Notice) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.read == nil {
		x.read = make(map[backend.LeaseID]bool)
	}
	missed := x.missed || len(notices) > 0 && notices[0].Cut && !x.read[notices[0].Lease]
	for _, n := range notices {
		x.read[n.Lease] = true
	}
	x.missed = false
	return missed
}
