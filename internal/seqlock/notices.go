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
	mu sync.Mutex
	// read are the notices that were read last. None from before them was missed. Other leases may have been
	// reported as missing while the break that took them was in progress, so they do not show that.
	read []Notice
}

// Read records notices. If others may have been dropped before they were read, it calls check, which must
// find the leases that the session misses. Where check fails, the next Read calls it again.
func (x *Inbox) Read(notices []Notice, check func() error) error {
	if x.mayMiss(notices) {
		if err := check(); err != nil {
			return err
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.read = notices
	return nil
}

// mayMiss reports whether there were older notices, the last of which may not have been read.
func (x *Inbox) mayMiss(notices []Notice) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(notices) > 0 && notices[0].Cut &&
		!slices.ContainsFunc(x.read, func(n Notice) bool { return n.Lease == notices[0].Lease })
}
