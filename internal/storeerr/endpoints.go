package storeerr

import (
	"sync"
)

// Endpoints remembers which endpoints of one store refuse this client, by the last attempt to connect to each.
// A client continues with the others, so the store refuses it only if all of them do. The zero value knows
// none. Its methods are safe for concurrent use.
type Endpoints struct {
	mu      sync.Mutex
	refusal map[string]error
	changed chan struct{}
}

// Tried records how an attempt to connect to an endpoint ended; nil: it succeeded. Only an error that
// Refused recognises counts as a refusal: see ofTLS.
func (e *Endpoints) Tried(endpoint string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil || ofTLS("", err) == "" {
		delete(e.refusal, endpoint)
		return
	}
	if e.refusal == nil {
		e.refusal = make(map[string]error)
	}
	e.refusal[endpoint] = err
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}

// Refusal returns the error of one of the endpoints if n of them refuse, and otherwise a channel that
// is closed when another one does.
func (e *Endpoints) Refusal(n int) (<-chan struct{}, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.refusal) >= n {
		for _, err := range e.refusal {
			return nil, err
		}
	}
	if e.changed == nil {
		e.changed = make(chan struct{})
	}
	return e.changed, nil
}
