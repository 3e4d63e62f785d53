package k8slock_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/k8slock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// manyAtOnce: hundreds of callers want locks and reads while the API server answers nothing about
// locks. It is sent no more than a few of their requests, renewals go beside them, and a lock that
// client-go could take is written again before the others. Then all of the callers succeed.
func manyAtOnce(b *bench) {
	const locks, looks, foreign = 300, 100, 5 * time.Minute
	p := b.processWith(time.Minute, settings{foreign: foreign})
	held, _ := p.take("held")
	answers := make(chan struct{})
	answer := sync.OnceFunc(func() { close(answers) })
	b.Cleanup(answer)
	var mu sync.Mutex
	now, most, pressed := 0, 0, false
	p.wire.set(func(req *http.Request, next http.RoundTripper) (*http.Response, error) {
		name := object(req)
		switch {
		case isWatch(req), strings.HasPrefix(name, "holdfast-session-"):
			return next.RoundTrip(req)
		case name == "held":
			mu.Lock()
			pressed = pressed || req.Method == http.MethodPut
			mu.Unlock()
			return next.RoundTrip(req)
		}
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			now--
		}()
		<-answers // even if the caller has given up: a request on its way counts
		return next.RoundTrip(req)
	})
	errs := make(chan error, locks+looks)
	for i := range locks {
		go func() {
			_, err := p.acquire(p.ask(fmt.Sprintf("lock-%d", i)))
			errs <- err
		}()
	}
	for range looks {
		go func() {
			_, err := leasetest.Insist(b.T, func(ctx context.Context) (backend.LockInfo, error) { return p.Inspect(ctx, "other") })
			errs <- err
		}()
	}
	underWay := func() int {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
	b.until("as many as may be", func() bool { return underWay() >= k8slock.RecordsAtOnce })
	for range 5 {
		p.renew()
	}
	p.Age(foreign * 9 / 10) // a renewal counts when the lock was written again
	p.renew()
	mu.Lock()
	if !pressed {
		b.Error("the renewal counts, and client-go could take the lock")
	}
	mu.Unlock()
	answer()
	for range locks + looks {
		if err := soon(b, "an answer", errs); err != nil {
			b.Error(err)
		}
	}
	mu.Lock() // requests whose callers have given up are still on their way
	peak := most
	mu.Unlock()
	if peak > k8slock.RecordsAtOnce {
		b.Errorf("%d requests about locks were under way; it has to be %d at most", peak, k8slock.RecordsAtOnce)
	}
	p.holders("held", held)
	select {
	case l := <-p.lost:
		b.Errorf("lost: %+v", l)
	default:
	}
	if res, err := p.Renew(b.Context(), backend.RenewRequest{Session: p.id}); err != nil || res.SessionLost {
		b.Errorf("%+v, %v", res, err)
	}
}
