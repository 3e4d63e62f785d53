//go:build unix

package runner

import (
	"bufio"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/verify/history"
)

// workerHandle is one life of a worker, as the run sees it.
type workerHandle struct {
	id     string
	cmd    *exec.Cmd // nil for a worker in this process
	link   *link     // of a worker in this process
	orders chan order
	done   chan struct{} // closed when the worker has ended and all its output was read
	err    error         // how it ended; read after done
	stop   context.CancelFunc
	begun  chan struct{} // closed when it has started
	once   sync.Once
}

// maxOrders is how many orders are queued for a worker that does not read, because it is
// stopped.
const maxOrders = 1 << 14

func newWorkerHandle(id string) *workerHandle {
	return &workerHandle{id: id, orders: make(chan order, maxOrders), done: make(chan struct{}), begun: make(chan struct{})}
}

// send queues an order. It does not block.
func (p *workerHandle) send(o order) {
	select {
	case p.orders <- o:
	case <-p.done:
	default: // it has not read for very long, and will be killed
	}
}

// feed writes the job and the orders until the worker has ended.
func (p *workerHandle) feed(j job, in io.WriteCloser) {
	defer func() { _ = in.Close() }()
	enc := json.NewEncoder(in)
	if enc.Encode(j) != nil {
		return
	}
	for {
		select {
		case o := <-p.orders:
			if enc.Encode(o) != nil {
				return
			}
		case <-p.done:
			return
		}
	}
}

// listen passes on the events of the worker until it has ended.
func (p *workerHandle) listen(out io.Reader, hear func(history.Event)) {
	in := bufio.NewReaderSize(out, 1<<18)
	codec := gob.NewDecoder(in)
	for {
		var e history.Event
		if codec.Decode(&e) != nil {
			_, _ = io.Copy(io.Discard, in) // cut short because the worker died; or it writes garbage, and must not block
			return
		}
		if e.Check() == nil {
			p.pass(e, hear)
		}
	}
}

// pass passes on an event.
func (p *workerHandle) pass(e history.Event, hear func(history.Event)) {
	if p.link != nil && p.link.deadAt(e.At) {
		return // a dead process would not have sent it; earlier events count
	}
	if e.Kind == history.KindStart && e.Worker == p.id {
		p.once.Do(func() { close(p.begun) })
	}
	hear(e)
}

// startProcess starts a worker as a child process. It dies with this process.
func startProcess(argv []string, j job, hear func(history.Event)) (*workerHandle, error) {
	p := newWorkerHandle(j.Worker)
	p.cmd = exec.Command(argv[0], argv[1:]...) //nolint:gosec,noctx // this program itself; it ends when it is told to
	p.cmd.SysProcAttr = sysProcAttr()
	var said tail
	p.cmd.Stderr = &said
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("verify: start a worker: %w", err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("verify: start a worker: %w", err)
	}
	started := make(chan error, 1)
	go func() {
		// The death signal arrives when the thread that started the child ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := p.cmd.Start(); err != nil {
			started <- fmt.Errorf("verify: start a worker: %w", err)
			return
		}
		started <- nil
		p.listen(out, hear)
		if err := p.cmd.Wait(); err != nil {
			p.err = fmt.Errorf("worker %s: %w: %s", p.id, err, said.text())
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	go p.feed(j, in)
	return p, nil
}

// signal sends a signal to the worker's process.
func (p *workerHandle) signal(s os.Signal) {
	if p.cmd != nil {
		_ = p.cmd.Process.Signal(s) // a process that has ended needs none
	}
}

// kill kills the worker, and waits until it has ended.
func (p *workerHandle) kill() {
	if p.cmd != nil {
		p.signal(syscall.SIGKILL)
	} else {
		p.link.kill()
		p.stop()
		p.send(order{Stop: true})
	}
	<-p.done
}

// startInside starts a worker in this process.
func startInside(ctx context.Context, b backend.Backend, j job, hear func(history.Event)) *workerHandle {
	p := newWorkerHandle(j.Worker)
	p.link = newLink(b)
	ctx, p.stop = context.WithCancel(ctx)
	ordersOut, ordersIn := io.Pipe()
	go p.feed(j, ordersIn)
	go func() {
		lines := bufio.NewScanner(ordersOut)
		lines.Scan() // the job, which is known
		w := newWorker(j, &recorder{direct: func(e history.Event) { p.pass(e, hear) }})
		closing, err := w.run(ctx, p.link, lines)
		p.err = ignoreAway(err)
		if !p.killed() {
			w.record(history.Event{Kind: history.KindEnd, At: closing, Worker: j.Worker})
		}
		_ = ordersOut.Close()
		p.stop()
		close(p.done)
	}()
	return p
}

func (p *workerHandle) killed() bool {
	p.link.mu.Lock()
	defer p.link.mu.Unlock()
	return p.link.died != 0
}

// ignoreAway ignores that a worker could not close its client.
func ignoreAway(err error) error {
	if errors.Is(err, backend.ErrUnavailable) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	end []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, p...)
	if over := len(t.end) - 4096; over > 0 {
		t.end = t.end[over:]
	}
	return len(p), nil
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.end))
}
