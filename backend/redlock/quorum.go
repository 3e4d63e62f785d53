package redlock

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// patience is for how long nodes that have not answered are waited for where a majority
// has, and has not decided. A node that hangs costs so much, until it is taken for down.
const patience = 20 * time.Millisecond

// answer is what a node said.
type answer struct {
	node int
	list []any
	err  error
}

// poll is one operation asked of several nodes at once.
type poll struct {
	b       *Backend
	asked   time.Time // before the first request left
	answers chan answer
	pending map[int]bool // nodes that have not answered
	errs    []error      // by node: what it did instead of answering
	good    int          // nodes that answered

	mu   sync.Mutex
	late func(answer) // see leave
}

// ask asks all nodes, or those named. debt: a node that is down is told when it is back.
func (b *Backend) ask(a []string, debt bool, nodes ...int) *poll {
	if len(nodes) == 0 {
		for i := range b.nodes {
			nodes = append(nodes, i)
		}
	}
	p := &poll{
		b: b, asked: time.Now(), answers: make(chan answer, len(nodes)), pending: make(map[int]bool, len(nodes)),
		errs: make([]error, len(b.nodes)),
	}
	for _, i := range nodes {
		p.pending[i] = true
	}
	for _, i := range nodes {
		b.nodes[i].submit(&op{args: a, debt: debt, reply: func(list []any, err error) { p.reply(answer{i, list, err}) }})
	}
	return p
}

// need is what is still waited for.
type need uint8

const (
	everyone need = iota // all nodes that are up
	soon                 // those that are not slow: see patience
	nobody               // enough is known
)

// collect hands the answers to take until that needs no more, or all nodes have answered.
// Answers that come later go to the late function that leave is given. The error is nil
// unless ctx or the backend ended.
func (p *poll) collect(ctx context.Context, take func(answer) need) error {
	var late *time.Timer
	var tired <-chan time.Time
	for len(p.pending) > 0 {
		select {
		case a := <-p.answers:
			delete(p.pending, a.node)
			p.errs[a.node] = a.err
			if a.err == nil {
				p.good++
			}
			switch take(a) {
			case nobody:
				return nil
			case everyone:
				tired = nil
				continue
			case soon:
			}
			if late == nil {
				// On a machine that is busy all of them are slow.
				const times = 3
				late = time.NewTimer(max(patience, times*time.Since(p.asked)))
				defer late.Stop()
			}
			tired = late.C
		case <-tired:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-p.b.base.Done():
			return backend.ErrClosed
		}
	}
	return nil
}

// leave has late called with each answer that comes from now on. Nothing is collected
// afterwards.
func (p *poll) leave(late func(answer)) {
	p.mu.Lock()
	p.late = late
	p.mu.Unlock()
	for {
		select {
		case a := <-p.answers:
			late(a)
		default:
			return
		}
	}
}

func (p *poll) reply(a answer) {
	p.mu.Lock()
	late := p.late
	if late == nil {
		p.answers <- a // there is room for all
	}
	p.mu.Unlock()
	if late != nil {
		late(a)
	}
}

// silent is how many of the nodes asked have not answered, or with an error.
func (p *poll) silent() int {
	n := len(p.pending)
	for _, err := range p.errs {
		n += toInt(err != nil)
	}
	return n
}

// unknown is how many of the nodes asked may have done it without saying so.
func (p *poll) unknown() int {
	n := len(p.pending)
	for _, err := range p.errs {
		n += toInt(err != nil && !unsent(err))
	}
	return n
}

// failure is that too few nodes answered.
func (p *poll) failure() error {
	errs := make([]error, len(p.errs))
	copy(errs, p.errs)
	for i := range p.pending {
		errs[i] = errTimeout
	}
	return noQuorum(p.good, p.b.majority, errs)
}
