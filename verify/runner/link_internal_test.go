//go:build unix

package runner

import (
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/verify/history"
)

// An event that a worker in this process sent before it was killed counts, even if it is read
// after that: a release that it had sent may have worked. Later events do not count.
func TestLastWordsOfTheKilled(t *testing.T) {
	t.Parallel()
	p := newWorkerHandle("1.1")
	p.link = newLink(memlock.New())
	t.Cleanup(func() { _ = p.link.Close() })
	var heard []history.Kind
	hear := func(e history.Event) { heard = append(heard, e.Kind) }
	w := newWorker(job{Worker: "1.1", TTL: time.Second}, &recorder{direct: func(e history.Event) { p.pass(e, hear) }})
	w.tell(history.Event{Kind: history.KindCall, Op: 1, Verb: history.VerbRelease, Lock: "n", Acq: "1.1-1"})
	p.link.kill()
	for now() <= p.link.died {
		continue
	}
	w.tell(history.Event{Kind: history.KindReturn, Op: 1, Outcome: history.OK})
	if len(heard) != 1 || heard[0] != history.KindCall {
		t.Errorf("heard %q, want the call alone", heard)
	}
}
