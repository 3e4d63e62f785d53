package connect

import (
	"context"
	"sync"
	"time"
)

// refusalTime is how long a refusal counts. A client that is refused asks again sooner; one that cannot connect any more, or
// was idle, learns nothing: the server may be restarting, with what it needs.
const refusalTime = 10 * time.Second

// Endpoints remembers which endpoints of one store refuse this client, by the last attempt to connect to each.
// A client continues with the others, so the store refuses it only if all of them do. The zero value knows
// none. Its methods are safe for concurrent use.
type Endpoints struct {
	mu      sync.Mutex
	refusal map[string]refusal
	last    error // of the last attempt; nil: it succeeded
	changed chan struct{}
}

type refusal struct {
	err error
	at  time.Time
}

// Tried records how an attempt to connect to an endpoint ended; nil: it succeeded. Only an error that
// Refused recognises counts as a refusal: see ofTLS.
func (e *Endpoints) Tried(endpoint string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last = err
	if err == nil || ofTLS("", err) == "" {
		delete(e.refusal, endpoint)
		return
	}
	if e.refusal == nil {
		e.refusal = make(map[string]refusal)
	}
	e.refusal[endpoint] = refusal{err, time.Now()}
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}

// Unconnected returns the error of a request whose context ended while there was no connection.
func (e *Endpoints) Unconnected(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.last == nil {
		return context.Cause(ctx)
	}
	return &UnconnectedError{Why: e.last.Error(), Err: context.Cause(ctx)}
}

// Refusal returns the error of one of the endpoints if n of them refused lately, and otherwise a channel that
// is closed when another one does.
func (e *Endpoints) Refusal(n int) (<-chan struct{}, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var last error
	count := 0
	for _, r := range e.refusal {
		if time.Since(r.at) < refusalTime {
			last = r.err
			count++
		}
	}
	if last != nil && count >= n {
		return nil, last
	}
	if e.changed == nil {
		e.changed = make(chan struct{})
	}
	return e.changed, nil
}
