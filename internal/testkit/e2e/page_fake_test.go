package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/dashboard"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// fake is a server whose locks the test makes up, with times in the past.
type fake struct {
	session wire.Caller
	locked  bool  // asks for a token
	unready error // what /readyz reports, if anything
	cases   []byte

	mu     sync.Mutex
	locks  []wire.Lock // by name
	at     map[string]int
	born   time.Time
	events []string      // all so far: each stream begins with the first
	more   chan struct{} // closed, and replaced, when there are more
}

// serveFake serves the page and the fake until the test ends.
func serveFake(t *testing.T, locks []wire.Lock) (*fake, string) {
	t.Helper()
	f := &fake{
		session: wire.Caller{Principal: "oncall", Policy: true, Backend: "etcd", Version: "0.1.0"},
		locks:   locks, at: make(map[string]int, len(locks)), born: time.Now(), more: make(chan struct{}),
	}
	for i, l := range locks {
		f.at[l.Name] = i
	}
	srv := httptest.NewServer(f)
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return f, srv.URL
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w.Header().Set(wire.HeaderTime, wire.FormatTime(time.Now()))
	name, isLock := strings.CutPrefix(r.URL.EscapedPath(), "/v1/locks/")
	switch {
	case r.URL.Path == "/" || strings.HasPrefix(r.URL.Path, "/dashboard/"):
		dashboard.Serve(w, r)
	case r.URL.Path == "/cases.js":
		w.Header().Set("Content-Type", "text/javascript")
		_, _ = w.Write(f.cases)
	case f.locked:
		w.WriteHeader(http.StatusUnauthorized)
		answerJSON(w, wire.Problem{Status: http.StatusUnauthorized, Detail: "send a token"})
	case r.URL.Path == "/v1/session":
		answerJSON(w, f.session)
	case r.URL.Path == "/v1/losses":
		answerJSON(w, wire.Losses{Losses: []wire.Loss{}})
	case r.URL.Path == "/readyz" && f.unready != nil:
		w.WriteHeader(http.StatusServiceUnavailable)
		answerJSON(w, wire.Problem{Status: http.StatusServiceUnavailable, Detail: f.unready.Error()})
	case r.URL.Path == "/readyz":
		answerJSON(w, wire.Health{Status: "ready", Backend: f.session.Backend})
	case r.URL.Path == "/v1/events":
		f.stream(w, r)
	case r.URL.Path == "/v1/locks":
		answerJSON(w, f.page(r.URL.Query()))
	case isLock:
		name, _ = url.PathUnescape(name)
		l := wire.Lock{Name: name, Holders: []wire.Holder{}, Waiters: []wire.Waiter{}}
		if i, ok := f.at[name]; ok {
			l = f.renewed(f.locks[i : i+1])[0]
			l.MayBreak = true
		}
		answerJSON(w, l)
	default:
		http.NotFound(w, r)
	}
}

func answerJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func (f *fake) page(q url.Values) wire.List {
	from, limit := 0, 1000
	if i, ok := f.at[q.Get("after")]; ok {
		from = i + 1
	}
	if n, err := strconv.Atoi(q.Get("limit")); err == nil {
		limit = n
	}
	out := wire.List{Locks: f.renewed(f.locks[from:min(len(f.locks), from+limit)])}
	if from+limit < len(f.locks) {
		out.Next = f.locks[from+limit-1].Name
	}
	return out
}

// quarantined sets for how long /readyz reports a quarantine, and returns it. 0: it reports none.
func (f *fake) quarantined(left time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unready = nil
	if left > 0 {
		f.unready = &backend.QuarantineError{Backend: "redis", Reason: "the server is new or lost its data", Left: left, Parameter: "quarantine=off"}
	}
	return f.unready
}

// renewed returns the locks as if each holder had renewed its lease all the time: it has left what the
// test gave it.
func (f *fake) renewed(locks []wire.Lock) []wire.Lock {
	out := slices.Clone(locks)
	for i := range out {
		out[i].Holders = slices.Clone(out[i].Holders)
		for k := range out[i].Holders {
			h := &out[i].Holders[k]
			h.ExpiresAt.Time = h.ExpiresAt.Add(time.Since(f.born))
		}
	}
	return out
}

// stream is called with the mutex held.
func (f *fake) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, "event: watching\ndata: {}\n\n")
	for sent := 0; ; {
		for ; sent < len(f.events); sent++ {
			fmt.Fprint(w, f.events[sent])
		}
		more := f.more
		f.mu.Unlock()
		err := http.NewResponseController(w).Flush()
		if err == nil {
			select {
			case <-more:
			case <-r.Context().Done():
				err = r.Context().Err()
			}
		}
		f.mu.Lock()
		if err != nil {
			return
		}
	}
}

// tell sends an event to every page.
func (f *fake) tell(kind string, e wire.Event) {
	b, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, fmt.Sprintf("event: %s\ndata: %s\n\n", kind, b))
	close(f.more)
	f.more = make(chan struct{})
}

// ago is a time in the past.
func ago(d time.Duration) wire.Time { return wire.Time{Time: time.Now().Add(-d)} }

// heldLock returns a lock that is held, and has waiters that came some time ago.
func heldLock(name, owner string, token fence.Token, since, left time.Duration, waits ...time.Duration) wire.Lock {
	l := wire.Lock{Name: name, Limit: 1, Waiters: []wire.Waiter{}, Holders: []wire.Holder{{
		Lease: "lease-of-" + fmt.Sprint(token), Owner: owner, Token: token, Permits: 1, Since: ago(since), ExpiresAt: ago(-left),
	}}}
	for i, w := range waits {
		l.Waiters = append(l.Waiters, wire.Waiter{Owner: fmt.Sprintf("worker-%d.eu/%d", i+3, 1200+i*37), Permits: 1, Since: ago(w), Position: i + 1})
	}
	return l
}
