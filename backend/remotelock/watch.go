package remotelock

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/wire"
)

const (
	// silence is how long an event stream may send nothing, not even a heartbeat.
	silence = 50 * time.Second
	maxLine = 64 << 10
)

var errSilent = errors.New("the event stream was silent for too long")

// Watch calls deliver with the events of the locks whose names start with req.Prefix
// until ctx ends.
//
// Errors: ctx's cause, *InvalidError, ErrUnsupported, *UnavailableError when the
// stream broke, ErrClosed.
func (b *Backend) Watch(ctx context.Context, req backend.WatchRequest, deliver func(backend.Event)) error {
	if err := backend.ValidatePrefix(req.Prefix); err != nil {
		return err
	}
	if !b.caps.Watch {
		return fmt.Errorf("watch: %w", backend.ErrUnsupported)
	}
	outer, done, err := backend.Begin(ctx, b.life)
	if err != nil {
		return err
	}
	defer done()
	c := call{op: "watch", method: http.MethodGet, path: "/v1/events", query: queryOf("prefix", req.Prefix), waits: time.Nanosecond}
	inner, cancel := context.WithCancelCause(outer)
	defer cancel(nil)
	alive := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer alive.Stop()
	res, err := b.send(inner, c)
	if err != nil {
		return b.failed(outer, c, err)
	}
	defer res.Body.Close() //nolint:errcheck // it is abandoned
	if res.StatusCode != http.StatusOK {
		return b.answer(outer, c, res)
	}
	return b.failed(outer, c, read(res.Body, func() { alive.Reset(silence) }, deliver))
}

// read reads server-sent events until the stream ends, and returns why it did.
func read(r io.Reader, heard func(), deliver func(backend.Event)) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	var kind, data string
	for lines.Scan() {
		heard()
		line := lines.Text()
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case field == "event":
			kind = value
		case field == "data":
			data += value
		case line == "" && kind != "":
			if err := deliverEvent(kind, data, deliver); err != nil {
				return err
			}
			kind, data = "", ""
		}
	}
	return cmp.Or(lines.Err(), io.ErrUnexpectedEOF) //nolint:wrapcheck // failed wraps it
}

// deliverEvent delivers one event.
func deliverEvent(kind, data string, deliver func(backend.Event)) error {
	if kind == "error" {
		var p wire.Problem
		if err := json.Unmarshal([]byte(data), &p); err != nil {
			return errAnswer
		}
		return fmt.Errorf("the server ended the stream: %s", text(p)) //nolint:err113 // the text of the server
	}
	var e wire.Event
	if err := json.Unmarshal([]byte(data), &e); err != nil {
		return errAnswer
	}
	switch got := e.Backend(kind); got.Kind {
	case backend.EventWatching, backend.EventAcquired, backend.EventReleased, backend.EventExpired,
		backend.EventBroken, backend.EventWaiting, backend.EventLeft:
		deliver(got)
	}
	return nil
}
