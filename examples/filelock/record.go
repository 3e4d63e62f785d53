//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package filelock

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// instant is a point in time of one boot, in nanoseconds.
type instant int64

// clock counts instants. boot changes whenever older instants lose their meaning.
type clock struct {
	boot string
	now  func() instant
}

// record is what the store knows of one name.
type record struct {
	Name  string      `json:"name"`
	Token fence.Token `json:"token"` // the greatest so far; 0: none
	Boot  string      `json:"boot"`  // that the instants belong to
	// Holder is the lease that was granted last, unless it was released. It may have expired.
	Holder *holder `json:"holder,omitempty"`
	// Abandoned has the leases that must not be granted, and until when they are remembered.
	Abandoned map[backend.LeaseID]instant `json:"abandoned,omitempty"`

	fresh   bool // there is no file yet
	changed bool // it must be written
	waits   bool // the call continues to wait, so no answer rests on the record
}

// holder is a lease.
type holder struct {
	Lease backend.LeaseID `json:"lease"`
	Owner string          `json:"owner,omitempty"`
	Note  string          `json:"note,omitempty"`
	Token fence.Token     `json:"token"`
	Since time.Time       `json:"since"`
	TTL   time.Duration   `json:"ttl"`
	End   instant         `json:"end"`
}

const (
	// remember is how long an abandoned lease is remembered: longer than its request can be under way
	// in a process that runs.
	remember = instant(10 * time.Minute)
	// header begins a record and the marker of a store. The number is the version of the format.
	header = "holdfast-filelock 1 "
	// lastToken is far below the greatest valid token: a record beyond it is damaged.
	lastToken = fence.Token(1) << 62
)

// refresh brings a record that was just read up to the present: leases of another boot get their full
// time, and what has expired is dropped. The drop is written, so that the lease stays lost even if the
// machine restarts.
func (r *record) refresh(c clock, now instant) {
	if r.Boot != c.boot {
		r.Boot, r.changed = c.boot, !r.fresh
		if r.Holder != nil {
			r.Holder.End = now + instant(r.Holder.TTL)
		}
		for id := range r.Abandoned {
			r.Abandoned[id] = now + remember
		}
	}
	if r.Holder != nil && r.Holder.End <= now {
		r.Holder, r.changed = nil, true
	}
	maps.DeleteFunc(r.Abandoned, func(_ backend.LeaseID, until instant) bool { return until <= now })
}

// held reports whether the lock is held, for a record that was read without the flock: it is a hint.
func (r *record) held(c clock) bool {
	return r.Holder != nil && (r.Boot != c.boot || c.now() < r.Holder.End)
}

// blocks reports whether the waiter for the lease continues to wait: another lease holds the lock, and
// this one was not abandoned. It is a hint too. A record of another boot must be refreshed first.
func (r *record) blocks(c clock, lease backend.LeaseID) bool {
	_, abandoned := r.Abandoned[lease]
	return !abandoned && r.Boot == c.boot && r.held(c) && r.Holder.Lease != lease
}

// nextToken raises the token. The first one of a record comes from the wall clock, so that it is above
// those of a record that was lost.
func (r *record) nextToken() fence.Token {
	if r.Token == 0 {
		r.Token = fence.Token(max(0, time.Now().UnixMicro()))
	}
	r.Token++
	r.changed = true
	return r.Token
}

// holders describes the holder, if there is one.
func (r *record) holders(now instant) []backend.Holder {
	h := r.Holder
	if h == nil {
		return nil
	}
	return []backend.Holder{{
		Lease: h.Lease, Owner: h.Owner, Note: h.Note, Permits: 1, Token: h.Token, Since: h.Since, Left: time.Duration(h.End - now),
	}}
}

// encode returns the content of the file: a line with the checksum of the rest, and JSON.
func (r *record) encode() ([]byte, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the record: %w", err)
	}
	return append([]byte(header+digest(text)+"\n"), text...), nil
}

// decode reads the content of a file, which must be complete and unchanged.
func decode(folder string, data []byte) (*record, error) {
	first, text, _ := bytes.Cut(data, []byte("\n"))
	if string(first) != header+digest(text) {
		return nil, fmt.Errorf("%w: the checksum of %s/%s is wrong", ErrCorrupt, folder, recordFile)
	}
	var r record
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return nil, fmt.Errorf("%w: %s/%s: %w", ErrCorrupt, folder, recordFile, err)
	}
	if digest([]byte(r.Name)) != folder || r.Token > lastToken || r.Holder != nil && r.Holder.Token > r.Token {
		return nil, fmt.Errorf("%w: %s/%s contradicts itself", ErrCorrupt, folder, recordFile)
	}
	return &r, nil
}

// digest returns the SHA-256 of the data as text.
func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
