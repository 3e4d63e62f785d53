package pglock

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// eventText is the encoded form of an event.
type eventText struct {
	N      int       `json:"n"` // within the transaction: no two texts of one are the same
	Kind   string    `json:"kind"`
	Name   string    `json:"name"`
	Lease  string    `json:"lease"`
	Owner  string    `json:"owner,omitempty"`
	Mode   uint8     `json:"mode,omitempty"`
	Token  uint64    `json:"token,omitempty"`
	Reason string    `json:"reason,omitempty"`
	At     time.Time `json:"at"`
}

func encodeEvent(n int, e backend.Event) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)  // so that a text is at most twice as long as its parts
	_ = enc.Encode(eventText{ // it cannot fail
		n, string(e.Kind), e.Name, string(e.Lease), e.Owner, uint8(e.Mode), uint64(e.Token), e.Reason, e.At,
	})
	return b.String()
}

func decodeEvent(payload string) (backend.Event, bool) {
	var t eventText
	if err := json.Unmarshal([]byte(payload), &t); err != nil {
		return backend.Event{}, false
	}
	return backend.Event{
		Kind: backend.EventKind(t.Kind), Name: t.Name, Lease: backend.LeaseID(t.Lease), Owner: t.Owner, Mode: backend.Mode(t.Mode),
		Token: fence.Token(t.Token), Reason: t.Reason, At: t.At,
	}, true
}
