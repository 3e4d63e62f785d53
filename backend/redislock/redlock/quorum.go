package redlock

import (
	"context"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
)

// patience is how long, at least, nodes that have not answered are waited for when a majority
// has answered without deciding. A node that hangs costs this much, until it is taken for down.
const patience = 20 * time.Millisecond

// answer is what a node answered.
type answer struct {
	node int
	list []program.Reply
	err  error
}

// poll is one operation sent to several nodes concurrently. Its results may be read when ask
// has returned; nothing changes them afterwards.
type poll struct {
	b        *Backend
	asked    time.Time     // before the first request was sent
	patience time.Duration // for nodes that are slow
	pending  uint64        // by node: it was asked, and has not answered
	errs     []error       // by node: the error instead of an answer
	good     int           // nodes that answered
	over     chan struct{} // closed when enough is known

	mu      sync.Mutex               // guards the fields below, and those above while take is set
	take    func(*poll, answer) need // nil when enough is known
	hurry   bool                     // take needs only the nodes that are not slow
	timer   *time.Timer              // runs from when take first returned soon
	tired   bool                     // the timer has fired
	untaken []answer                 // came when enough was known
	late    func(answer)             // see leave
}

// newPoll returns a poll whose answers are passed to reply.
func (b *Backend) newPoll(nodes []int, take func(*poll, answer) need) *poll {
	p := &poll{b: b, asked: time.Now(), patience: patience, errs: make([]error, len(b.nodes)), over: make(chan struct{}), take: take}
	for _, i := range nodes {
		p.pending |= 1 << i
	}
	return p
}

// ask sends the operation to all nodes, or to those named, and passes the answers to take until
// it needs no more, or all nodes have answered. take is called for one answer after the other, by
// the goroutine that has it, so that the caller is woken once; it must not block. Later answers
// go to the function passed to leave. The error is nil unless ctx ended.
func (b *Backend) ask(ctx context.Context, r request, take func(*poll, answer) need, nodes ...int) (*poll, error) {
	if len(nodes) == 0 {
		nodes = b.all
	}
	p := b.newPoll(nodes, take)
	for _, i := range nodes {
		b.nodes[i].submit(&op{request: r, reply: func(list []program.Reply, err error) { p.reply(answer{i, list, err}) }})
	}
	return p, p.wait(ctx)
}

// need says which answers are still waited for.
type need uint8

const (
	everyone need = iota // all nodes that are up
	soon                 // those that are not slow: see patience
	nobody               // enough is known
)

// wait waits until enough is known. The error is nil unless ctx ended before.
func (p *poll) wait(ctx context.Context) error {
	select {
	case <-p.over:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.take == nil {
		return nil // it was decided nevertheless
	}
	p.end()
	return context.Cause(ctx)
}

// reply records an answer.
func (p *poll) reply(a answer) {
	p.mu.Lock()
	late := p.late
	switch {
	case late != nil:
	case p.take == nil:
		p.untaken = append(p.untaken, a)
	default:
		p.record(a)
	}
	p.mu.Unlock()
	if late != nil {
		late(a)
	}
}

// record passes an answer to take. mu is held.
func (p *poll) record(a answer) {
	p.pending &^= 1 << a.node
	p.errs[a.node] = a.err
	if a.err == nil {
		p.good++
	}
	need := p.take(p, a)
	p.hurry = need == soon
	switch {
	case need == nobody, p.pending == 0, p.hurry && p.tired:
		p.end()
	case p.hurry && p.timer == nil:
		// On a busy machine all of them are slow.
		const times = 3
		p.timer = time.AfterFunc(max(p.patience, times*time.Since(p.asked)), p.tire)
	}
}

// tire ends the wait for the nodes that are slow.
func (p *poll) tire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tired = true; p.hurry {
		p.end()
	}
}

// end makes wait return. mu is held.
func (p *poll) end() {
	if p.take == nil {
		return
	}
	p.take = nil
	if p.timer != nil {
		p.timer.Stop()
	}
	close(p.over)
}

// leave makes late be called with each answer that take did not get.
func (p *poll) leave(late func(answer)) {
	p.mu.Lock()
	p.late = late
	untaken := p.untaken
	p.untaken = nil
	p.mu.Unlock()
	for _, a := range untaken {
		late(a)
	}
}

// enough returns the need of a caller for which the answers of a number of nodes are enough, or
// fewer if they are decisive.
func (p *poll) enough(n int, decisive bool) need {
	switch {
	case decisive:
		return nobody
	case p.good >= n:
		return soon
	}
	return everyone
}

// left returns how many of the nodes asked have not answered.
func (p *poll) left() int { return bits.OnesCount64(p.pending) }

// silent returns how many of the nodes asked have not answered, or with an error.
func (p *poll) silent() int {
	n := p.left()
	for _, err := range p.errs {
		n += toInt(err != nil)
	}
	return n
}

// reasons returns, by node, why there is no answer.
func (p *poll) reasons() []error {
	errs := slices.Clone(p.errs)
	for i := range errs {
		if p.pending&(1<<i) != 0 {
			errs[i] = backend.NoAnswer(min(p.b.cfg.RequestTimeout, time.Since(p.asked).Round(time.Millisecond)))
		}
	}
	return errs
}

// failure returns the error for too few answers.
func (p *poll) failure() error { return p.b.noQuorum(p.good, p.b.majority, p.reasons()) }
