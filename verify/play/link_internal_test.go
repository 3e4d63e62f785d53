//go:build unix

package play

import (
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/verify/history"
)

// What a worker in this process said before it was killed counts, also where it is read
// after that: a release that it had sent may have worked. What it says later does not count.
func TestLastWordsOfTheKilled(t *testing.T) {
	t.Parallel()
	p := newPlayer("1.1")
	p.link = newLink(memlock.New())
	t.Cleanup(func() { _ = p.link.Close() })
	var said strings.Builder
	w := newWorker(job{Worker: "1.1"}, &said)
	w.tell(history.Event{Kind: history.KindCall, Op: 1, Verb: history.VerbRelease, Lock: "n", Acq: "1.1-1"})
	p.link.kill()
	for now() <= p.link.died {
		continue
	}
	w.tell(history.Event{Kind: history.KindReturn, Op: 1, Outcome: history.OK})
	var heard []history.Kind
	p.listen(strings.NewReader(said.String()), func(e history.Event) { heard = append(heard, e.Kind) })
	if len(heard) != 1 || heard[0] != history.KindCall {
		t.Errorf("heard %q, want the call alone", heard)
	}
}
