package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// events serves GET /v1/events. The first event is "watching": every later change is reported,
// and an earlier one may have been missed. It is sent again when the server's own watch of the
// backend broke. A stream that ends says why, in an event "error" with a problem document. It ends
// within a heartbeat if the client may no longer watch; events of locks that it may no longer read are left
// out at once.
func (s *Server) events(w http.ResponseWriter, r *request) {
	if !s.caps.Watch {
		s.fail(w, r, fmt.Errorf("events: %w", backend.ErrUnsupported))
		return
	}
	leave, err := s.admitLong(r, s.admission.streams, 0)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer leave()
	sub := s.hub.subscribe(r.params.Get("prefix"))
	defer s.hub.unsubscribe(sub)
	out := &stream{w: w, c: http.NewResponseController(w), timeout: s.cfg.Limits.WriteTimeout}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead || out.comment("holdfast") != nil {
		return
	}
	beat := time.NewTicker(s.cfg.Heartbeat)
	defer beat.Stop()
	for {
		var err error
		select {
		case <-sub.more:
			for _, e := range s.hub.take(sub) {
				if s.stopping.Err() != nil {
					break // the stream reports it below
				}
				if err = s.tell(r, out, e); err != nil {
					return
				}
			}
		case <-beat.C:
			s.identifyAgain(r)
			if err := s.authorize(r, r.action()); err != nil && !errors.Is(err, backend.ErrUnavailable) {
				_ = out.event("error", problemOf(err, time.Now()))
				return
			}
			err = out.comment("beat")
		case <-sub.ended:
			_ = out.event("error", problemOf(sub.why, time.Now()))
			return
		case <-s.stopping.Done():
			_ = out.event("error", problemOf(errStopping, time.Now()))
			return
		case <-r.Context().Done():
			return
		}
		if err != nil {
			return
		}
	}
}

func (s *Server) tell(r *request, out *stream, e backend.Event) error {
	if e.Kind != backend.EventWatching && !s.allowed(r, e.Name) {
		return nil
	}
	if e.Kind != backend.EventWatching {
		s.viewOf(r, e.Name).hideEvent(&e)
	}
	return out.event(string(e.Kind), wire.FromEvent(e))
}

// stream writes server-sent events, each under its own deadline.
type stream struct {
	w       http.ResponseWriter
	c       *http.ResponseController
	timeout time.Duration
}

func (s *stream) event(name string, data any) error {
	b, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("encode the event: %w", err)
	}
	return s.send("event: %s\ndata: %s\n\n", name, b)
}

func (s *stream) comment(text string) error { return s.send(": %s\n\n", text) }

func (s *stream) send(format string, args ...any) error {
	if err := s.c.SetWriteDeadline(time.Now().Add(s.timeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("set the deadline: %w", err)
	}
	if _, err := fmt.Fprintf(s.w, format, args...); err != nil {
		return fmt.Errorf("write the event: %w", err)
	}
	if err := s.c.Flush(); err != nil {
		return fmt.Errorf("send the event: %w", err)
	}
	return nil
}
