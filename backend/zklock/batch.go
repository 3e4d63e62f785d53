package zklock

import (
	"errors"
	"runtime"
	"sync"

	"github.com/go-zookeeper/zk"
)

// batcher writes for all the goroutines of a session. Writes that are requested at the same time go in
// one transaction: one request, one entry of the log, one answer.
type batcher struct {
	link *link

	mu      sync.Mutex // guards the fields below
	waiting []*change
	running bool // a transaction is under way: what comes in the meantime goes in the next one
}

// change is what one caller wants to have written: all of it or nothing.
type change struct {
	ops []any // of zk.Conn.Multi
	// lock is the path of the lock whose queue the change joins; empty: none. Two changes that join
	// the same queue never share a transaction: its ID is their token.
	lock string
	size int // approximate bytes of ops

	done chan struct{} // closed when the fields below are set
	res  []zk.MultiResponse
	err  error
}

const (
	// gathering is how often other goroutines are let run before a transaction leaves: the caller
	// that gets a lock and the one that released it write at about the same time. With no other
	// goroutine it takes a microsecond.
	gathering = 16
	// maxTogether is the maximum number of concurrent transactions.
	maxTogether = 64
	// The limits of one transaction. The library sends at most sendBuffer in one request.
	maxOps, maxBatch = 200, 32 << 10
	// opSize is the most that an operation takes in addition to its texts.
	opSize = 150
)

// write has the change written, in one transaction with others if there are any, and waits for the
// result. An error for which denied returns true means that nothing was changed.
func (b *batcher) write(c *change) ([]zk.MultiResponse, error) {
	c.done = make(chan struct{})
	for _, op := range c.ops {
		c.size += opSize
		switch op := op.(type) {
		case *zk.CreateRequest:
			c.size += len(op.Path) + len(op.Data)
		case *zk.SetDataRequest:
			c.size += len(op.Path) + len(op.Data)
		case *zk.DeleteRequest:
			c.size += len(op.Path)
		case *zk.CheckVersionRequest:
			c.size += len(op.Path)
		}
	}
	b.mu.Lock()
	b.waiting = append(b.waiting, c)
	if !b.running {
		b.running = true
		go b.run()
	}
	b.mu.Unlock()
	<-c.done
	return c.res, c.err
}

// run sends pending changes until there are none. Changes that may not share a transaction go in
// several concurrent ones.
func (b *batcher) run() {
	for batches := b.takeAll(); len(batches) > 0; batches = b.takeAll() {
		var sent sync.WaitGroup
		for _, batch := range batches {
			sent.Go(func() { b.send(batch) })
		}
		sent.Wait()
	}
}

// takeAll takes the pending changes, in up to maxTogether batches. If none are pending, it ends the run.
func (b *batcher) takeAll() [][]*change {
	for range gathering { // let changes that are about to be written travel along
		runtime.Gosched()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var all [][]*change
	for len(b.waiting) > 0 && len(all) < maxTogether {
		all = append(all, b.take())
	}
	b.running = len(all) > 0
	return all
}

// take takes the pending changes that may travel with the first. mu is held.
func (b *batcher) take() []*change {
	var batch, rest []*change
	var ops, size int
	joined := make(map[string]bool)
	for i, c := range b.waiting {
		if len(batch) > 0 && (ops+len(c.ops) > maxOps || size+c.size > maxBatch) {
			rest = append(rest, b.waiting[i:]...)
			break
		}
		if c.lock != "" && joined[c.lock] {
			rest = append(rest, c)
			continue
		}
		joined[c.lock] = true
		ops, size, batch = ops+len(c.ops), size+c.size, append(batch, c)
	}
	b.waiting = rest
	return batch
}

// send writes the batch in one transaction. If the ensemble denies it for one of the changes, it
// has changed nothing, and each change is written by itself. A transaction without an answer is not
// repeated: its outcome is unknown.
func (b *batcher) send(batch []*change) {
	var ops []any
	for _, c := range batch {
		ops = append(ops, c.ops...)
	}
	res, err := b.multi(ops)
	if denied(err) && len(batch) > 1 {
		var all sync.WaitGroup
		for _, c := range batch {
			all.Go(func() { b.send([]*change{c}) })
		}
		all.Wait()
		return
	}
	for _, c := range batch {
		n := min(len(c.ops), len(res))
		c.res, c.err = res[:n:n], err
		res = res[n:]
		close(c.done)
	}
}

var errAnswer = errors.New("an answer that does not fit its question")

func (b *batcher) multi(ops []any) ([]zk.MultiResponse, error) {
	res, err := b.link.conn.Multi(ops...)
	if err == nil && len(res) != len(ops) {
		err = errAnswer
	}
	return res, err
}
