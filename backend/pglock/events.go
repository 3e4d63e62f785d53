package pglock

import (
	"encoding/json"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
)

// eventText is an event with its number in the transaction: no two texts of one are the same.
type eventText struct {
	backend.Event

	N int
}

func encodeEvent(n int, e backend.Event) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)        // so that a text is at most twice as long as its parts
	_ = enc.Encode(eventText{e, n}) // it cannot fail
	return b.String()
}

func decodeEvent(payload string) (backend.Event, bool) {
	var t eventText
	err := json.Unmarshal([]byte(payload), &t)
	return t.Event, err == nil
}
