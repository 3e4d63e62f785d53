package sqllease_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/sqllease"
	"github.com/holdfast-io/holdfast/internal/testkit/simulate"
)

// ending is a server that ends the connection over which it has just granted a lease for the first time, instead of answering.
type ending struct {
	*server

	once sync.Once
	then func()
}

func (s *ending) Quick(ctx context.Context, q *sqllease.Quick) error {
	err := s.server.Quick(ctx, q)
	if len(q.Granted) > 0 {
		s.once.Do(func() {
			q.Granted = nil
			s.then()
			err = simulate.ErrEnds
		})
	}
	return err
}

// C5, C7: an acquisition whose grant got no answer, and was broken, is granted again when it is repeated. The loss of the first
// is reported meanwhile, so no caller gets the second: it is given back.
func TestGrantAfterItsLoss(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newTables()
		operator := d.open(nil, true)
		defer operator.Close()
		s := &ending{server: &server{tables: d, net: simulate.NewNetwork(nil)}}
		s.then = func() {
			if res, err := operator.Break(t.Context(), backend.BreakRequest{Name: "n"}); err != nil || len(res.Broken) != 1 {
				t.Errorf("break: %+v, %v", res, err)
			}
			time.Sleep(time.Second) // the loss is read
		}
		b := sqllease.New(sqllease.Config{Store: s, Caps: capabilities(true), Addr: "value", Quick: 8, Conns: 4})
		d.mu.Lock()
		d.values["value"] = b
		d.mu.Unlock()
		b.Hearing(true)
		v := value{b, true, s.server}
		defer v.Close()
		locks, err := holdfast.New(v, holdfast.Config{TTL: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = locks.Close(t.Context()) }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		begun := time.Now()
		lock, err := locks.Acquire(ctx, "n")
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.Release(ctx); err != nil {
			t.Error(err)
		}
		if waited := time.Since(begun); waited > 10*time.Second {
			t.Errorf("after %s", waited)
		}
	})
}
