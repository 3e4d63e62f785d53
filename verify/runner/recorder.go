package runner

import (
	"encoding/gob"
	"fmt"
	"io"
	"sync"

	"github.com/holdfast-io/holdfast/verify/history"
)

// recorder passes on the events of a worker, in the order in which they are recorded. A worker
// may be killed at any moment, and the events before must be known then: a call is made only
// when its record has left the process. Concurrent records share one write.
type recorder struct {
	direct func(history.Event) // for a worker in the process of the run; it replaces all other fields

	out     io.Writer
	mu      sync.Mutex
	written sync.Cond
	codec   *gob.Encoder // to buf
	buf     []byte
	spare   []byte
	added   int64 // records
	passed  int64 // how many of them were written to out
	writing bool
	err     error
}

func newRecorder(out io.Writer) *recorder {
	r := &recorder{out: out}
	r.codec = gob.NewEncoder((*recorderBuffer)(r))
	r.written.L = &r.mu
	return r
}

// now records an event of this moment. When it returns, the event has left the process.
func (r *recorder) now(e history.Event) { r.atPresent(e, true) }

// later records an event of this moment that may be lost when the worker is killed.
func (r *recorder) later(e history.Event) { r.atPresent(e, false) }

// atPresent records an event of this moment, and waits until it has left the process if wait is set.
func (r *recorder) atPresent(e history.Event, wait bool) {
	if r.direct != nil {
		e.At = now()
		r.direct(e)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e.At = now() // in the order of the records
	r.add(&e, wait)
}

// record records an event that already has its time.
func (r *recorder) record(e history.Event) {
	if r.direct != nil {
		r.direct(e)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(&e, true)
}

// add adds an event. The first caller writes, also for callers that arrive during its write.
// When the run does not read any more, the worker learns that from the end of its orders.
func (r *recorder) add(e *history.Event, wait bool) {
	if err := r.codec.Encode(e); err != nil {
		r.err = fmt.Errorf("verify: record an event: %w", err)
	}
	r.added++
	mine := r.added
	for r.writing {
		if !wait || r.passed >= mine || r.err != nil {
			return
		}
		r.written.Wait()
	}
	for r.passed < mine && r.err == nil {
		r.writing = true
		buf, until := r.buf, r.added
		r.buf = r.spare[:0]
		r.mu.Unlock()
		_, err := r.out.Write(buf)
		r.mu.Lock()
		r.writing, r.spare, r.passed, r.err = false, buf, until, err
		r.written.Broadcast()
	}
}

// recorderBuffer appends to the buffer of a recorder.
type recorderBuffer recorder

func (r *recorderBuffer) Write(p []byte) (int, error) {
	r.buf = append(r.buf, p...)
	return len(p), nil
}

// failed returns why recording has failed, or nil.
func (r *recorder) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}
