package k8slock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// stream follows what happens to the objects of this package in the namespace: a list, and then a
// watch from there on.
type stream struct {
	once   sync.Once
	synced chan struct{} // closed when the first list was read

	mu    sync.Mutex
	err   error              // of the newest attempt; nil: it follows
	at    uint64             // the version up to which all events were received
	tried chan struct{}      // closed, and made again, with each attempt that failed
	again context.CancelFunc // ends the watch in progress
	begun time.Time          // when the watch in progress began
	heard time.Time          // when the last event came
}

// follow starts the stream, and waits until it has begun.
func (b *Backend) follow(ctx context.Context) error {
	st := &b.stream
	st.once.Do(func() {
		b.background(b.run)
		b.background(b.reap)
	})
	for {
		st.mu.Lock()
		tried := st.tried
		st.mu.Unlock()
		select {
		case <-st.synced:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tried:
			st.mu.Lock()
			err := st.err
			st.mu.Unlock()
			if err != nil {
				return err
			}
		}
	}
}

const (
	// watchFor is how long one watch lasts.
	watchFor = 5 * time.Minute
	// young is the age below which a watch may not have received yet what was written before, and
	// below which an ended watch counts as a failure: the next one may end as soon.
	young = time.Second
)

func (b *Backend) run() {
	st := &b.stream
	version := ""
	for failures := 0; b.base.Err() == nil; {
		begun := time.Now()
		next, err := b.listen(version)
		if b.base.Err() != nil {
			return
		}
		version = next
		st.mu.Lock()
		st.err = err
		if err != nil {
			close(st.tried)
			st.tried = make(chan struct{})
		}
		st.mu.Unlock()
		if time.Since(begun) > young {
			failures = 0
			if err == nil {
				continue
			}
		}
		if err != nil && failures == 0 { // once, not for each attempt while the API server does not answer
			b.cfg.Logger.WarnContext(b.base, "the watch of the Leases broke", slog.Any("error", err))
		}
		failures++
		if !pause(b.base, failures) {
			return
		}
	}
}

// listen reads a list if there is no version to continue from, and then the events. It returns the
// version to continue from, or an empty one if a list must be read.
func (b *Backend) listen(version string) (string, error) {
	if version == "" {
		var err error
		if version, err = b.relist(); err != nil {
			return "", err
		}
	}
	st := &b.stream
	ctx, cancel := context.WithCancel(b.base)
	defer cancel()
	st.mu.Lock()
	st.again, st.begun = cancel, time.Now()
	st.mu.Unlock()
	// The headers have to come soon; the rest may take as long as it likes.
	impatient := time.AfterFunc(attempt, cancel)
	body, err := b.rest.watch(ctx, version, watchFor)
	if !impatient.Stop() && err == nil {
		err = context.DeadlineExceeded
		_ = body.Close()
	}
	if isStatus(err, http.StatusGone) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer func() { _ = body.Close() }()
	for dec := json.NewDecoder(body); ; {
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := dec.Decode(&event); err != nil {
			// The server ended it, as agreed, or it broke: it continues where it was.
			if ctx.Err() != nil && b.base.Err() == nil {
				return "", errStuck
			}
			return version, nil
		}
		next, err := b.heard(event.Type, event.Object)
		if err != nil {
			return "", err
		}
		if next == "" {
			return "", nil
		}
		version = next
	}
}

var errStuck = errors.New("the watch did not report a write in time")

// heard processes one event and returns its version, or an empty one if a list must be read again.
func (b *Backend) heard(kind string, raw json.RawMessage) (string, error) {
	if kind == "ERROR" {
		var status struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		}
		_ = json.Unmarshal(raw, &status)
		if status.Code == http.StatusGone {
			return "", nil
		}
		return "", &statusError{code: status.Code, message: status.Message}
	}
	var o object
	if err := json.Unmarshal(raw, &o); err != nil {
		return "", fmt.Errorf("read an event: %w", err)
	}
	switch kind {
	case "ADDED", "MODIFIED":
		b.learn(&o)
	case "DELETED":
		b.absent(o.Metadata.Name, o.version())
	}
	b.stream.mu.Lock()
	b.stream.at, b.stream.heard = max(b.stream.at, o.version()), time.Now()
	b.stream.mu.Unlock()
	return o.Metadata.ResourceVersion, nil
}

// relist reads everything.
func (b *Backend) relist() (string, error) {
	ctx, cancel := backend.WithTimeout(b.base, attempt)
	defer cancel()
	all, version, err := b.rest.list(ctx)
	if err != nil {
		return "", err
	}
	at, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return "", fmt.Errorf("the API server returned the resource version %q, which is not a number", version)
	}
	there := make(map[string]bool, len(all))
	for _, o := range all {
		there[o.Metadata.Name] = true
		b.learn(o)
	}
	m := &b.cache
	m.mu.Lock()
	var missing []string
	for name := range m.objects {
		if !there[name] {
			missing = append(missing, name)
		}
	}
	m.mu.Unlock()
	for _, name := range missing {
		b.absent(name, at)
	}
	st := &b.stream
	st.mu.Lock()
	st.at = max(st.at, at)
	st.mu.Unlock()
	select {
	case <-st.synced:
	default:
		close(st.synced)
	}
	return version, nil
}

// checkStream checks that the watch has delivered a write of this process that was made a while
// ago, and restarts the watch if it has not: a connection can be silently dead. A watch that
// delivers other events is late: restarting would make it later.
func (b *Backend) checkStream(version uint64) {
	st := &b.stream
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.at < version && st.again != nil && time.Since(st.begun) > young && time.Since(st.heard) > young {
		st.again()
	}
}
