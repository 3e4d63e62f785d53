package etcdlock

import (
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// B11: a deletion while a waiter reads is not forgotten: the waiter has to read again before it
// waits, if what it read was older.
func TestDeletedWhileLooking(t *testing.T) {
	t.Parallel()
	gone := []*clientv3.Event{{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: []byte("before"), ModRevision: 12}}}
	for _, c := range []struct {
		name string
		need need
		asOf int64 // of what it read
	}{
		{"the one that it needs gone", need{key: "before"}, 11},
		{"any one", need{any: true}, 11},
	} {
		l := &queues{byName: make(map[string]*queue)}
		w := &waiter{rev: 10}
		l.join("n", w)
		wt := &watch{from: 1, deleted: make(map[string]int64), cancel: func() {}}
		w.queue.watch = wt
		l.check(w)
		l.deliver(w.queue, wt, gone)
		if l.await(w, c.need, c.asOf) {
			t.Errorf("%s: it waits for what has happened", c.name)
		}
		l.check(w)
		if !l.await(w, c.need, 12) {
			t.Errorf("%s: it does not wait, though it saw that", c.name)
		}
		l.leave(w)
	}
}
