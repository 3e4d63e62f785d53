package k8slock

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// A session that has ended is deleted once, however often it is checked while its request waits for
// a slot: many processes of a node that died end at the same time, and each event triggers a check.
func TestBuriedOnce(t *testing.T) {
	t.Parallel()
	const dead, looks = 50, 100
	var deletes atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			deletes.Add(1)
		}
		http.Error(w, `{"kind":"Status","reason":"NotFound","code":404}`, http.StatusNotFound)
	}))
	t.Cleanup(srv.Close)
	b, err := New(srv.Client(), srv.URL, Config{Namespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	for range cap(b.slots) {
		b.slots <- struct{}{}
	}
	m := &b.cache
	for i := range dead {
		id := backend.NewSessionID()
		text, err := json.Marshal(sessionState{ID: id, TTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		o := newObject(sessionName(id))
		o.Metadata.Labels[kindLabel], o.Metadata.Annotations[stateKey] = kindSession, string(text)
		o.Metadata.ResourceVersion = strconv.Itoa(10 + i)
		b.learn(o)
		m.mu.Lock()
		m.objects[o.Metadata.Name].at = time.Now().Add(-time.Minute)
		m.mu.Unlock()
	}
	for range looks {
		b.endOver()
	}
	for range cap(b.slots) {
		<-b.slots
	}
	leasetest.Eventually(t, "all are deleted", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.objects) == 0
	})
	if err := b.Close(); err != nil { // it waits for those in progress
		t.Fatal(err)
	}
	if n := deletes.Load(); n != dead {
		t.Errorf("%d requests to delete %d sessions", n, dead)
	}
}

// A write that only shuts out an older one differs from what it replaces, also while a candidate of client-go has the
// lock: the API server stores no update without a difference.
func TestTouchDiffers(t *testing.T) {
	t.Parallel()
	o := newObject(objectName("n"))
	o.Spec.HolderIdentity = "candidate"
	text := ""
	for _, version := range []string{"7", "8"} {
		o.Metadata.ResourceVersion = version
		r, err := open("n", o)
		if err != nil {
			t.Fatal(err)
		}
		if o, err = r.seal(time.Unix(1, 0), time.Minute); err != nil {
			t.Fatal(err)
		}
		if !r.foreign || o.Metadata.Annotations[stateKey] == text {
			t.Errorf("version %s: foreign %t, %q after %q", version, r.foreign, o.Metadata.Annotations[stateKey], text)
		}
		text = o.Metadata.Annotations[stateKey]
	}
}
