package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// processes is n processes of several goroutines each, either with a lock for each goroutine or all
// on one lock. The referee is the kernel: the holder of a lock also locks a file of this host.
func processes(n, goroutines int, one bool) Scenario {
	p := fleet{processes: n, goroutines: goroutines, one: one}
	id, title := fmt.Sprintf("procs/%dx%d/own", n, goroutines), ", each with a lock of its own"
	if one {
		id, title = fmt.Sprintf("procs/%dx%d/one", n, goroutines), " that all want one lock, again and again"
	}
	s := Scenario{ID: id, Title: fmt.Sprintf("%d processes of %d goroutines%s", n, goroutines, title), Processes: true, Run: p.run}
	if one {
		s.Needs, s.Waiters = CanWait, n*goroutines
	}
	return s
}

type fleet struct {
	processes, goroutines int
	one                   bool
}

// order is the first line of a process's standard input: what to do. Then the process reports that
// it is ready. The next line makes it begin, and the end of the input makes it stop and report its
// notes.
type order struct {
	URL        string        `json:"url"`
	Beside     string        `json:"beside"`
	Contender  string        `json:"contender"`
	TTL        time.Duration `json:"ttl"`
	Prefix     string        `json:"prefix"`
	First      int           `json:"first"` // number of its first goroutine
	Goroutines int           `json:"goroutines"`
	One        bool          `json:"one"`
	Guards     string        `json:"guards"` // folder of the lock files
}

// notes are the measurements of a process.
type notes struct {
	Workers     []workerNotes `json:"workers"`
	Doubles     int64         `json:"doubles"`
	TokenFaults int64         `json:"token_faults"`
	Grants      int64         `json:"grants"`
	Failed      string        `json:"failed"`
}

type workerNotes struct {
	Waits []time.Duration `json:"waits"`
	Pairs []time.Duration `json:"pairs"`
	Held  time.Duration   `json:"held"`
}

const readyLine = "ready"

func (p fleet) run(ctx context.Context, t *Trial) (Figures, error) {
	guards, err := os.MkdirTemp("", "hf-bench-")
	if err != nil {
		return nil, fmt.Errorf("folder of the referee: %w", err)
	}
	defer func() { _ = os.RemoveAll(guards) }()
	ctx, cancel := context.WithTimeout(ctx, 10*t.Budget+2*stopTimeout)
	defer cancel()
	var crew []*process
	defer func() {
		for _, c := range crew {
			c.end()
		}
	}()
	for i := range p.processes {
		c, err := startProcess(ctx, t.Worker, &order{
			URL: t.Engine.URL, Beside: t.Engine.Beside, Contender: t.Contender.Name, TTL: t.TTL, Prefix: t.Prefix,
			First: i * p.goroutines, Goroutines: p.goroutines, One: p.one, Guards: guards,
		})
		if err != nil {
			return nil, err
		}
		crew = append(crew, c)
	}
	return p.lead(ctx, crew, t.Budget)
}

// lead makes all processes begin and end together.
func (p fleet) lead(ctx context.Context, crew []*process, budget time.Duration) (Figures, error) {
	for _, c := range crew {
		if err := c.awaitReady(); err != nil {
			return nil, err
		}
	}
	begin := time.Now()
	for _, c := range crew {
		if _, err := io.WriteString(c.in, "go\n"); err != nil {
			return nil, fmt.Errorf("begin: %w", err)
		}
	}
	if err := pause(ctx, budget); err != nil {
		return nil, err
	}
	for _, c := range crew {
		_ = c.in.Close() // a failure shows in what the process writes next
	}
	elapsed := time.Since(begin)
	s := &scene{group: group{goroutines: p.processes * p.goroutines, one: p.one}}
	var workers []*worker
	var doubles, faults int64
	for _, c := range crew {
		n, err := c.notes()
		if err != nil {
			return nil, err
		}
		for _, w := range n.Workers {
			workers = append(workers, &worker{scene: s, exclusive: true, waits: w.Waits, pairs: w.Pairs, held: w.Held})
		}
		doubles, faults = doubles+n.Doubles, faults+n.TokenFaults
		s.grants.Add(n.Grants)
	}
	f := s.figures(workers, elapsed)
	f[DoubleHolds], f[TokenFaults] = float64(doubles), float64(faults)
	return f, nil
}

// process is one of the worker processes.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	err strings.Builder
}

func startProcess(ctx context.Context, command []string, o *order) (*process, error) {
	c := &process{cmd: exec.CommandContext(ctx, command[0], command[1:]...)} //nolint:gosec // this program again
	c.cmd.Stderr = &c.err
	in, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start a process: %w", err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start a process: %w", err)
	}
	c.in, c.out = in, bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a process: %w", err)
	}
	if err := json.NewEncoder(in).Encode(o); err != nil {
		c.end()
		return nil, fmt.Errorf("send a process its task: %w", err)
	}
	return c, nil
}

// end kills the process if it still runs, and waits for it.
func (c *process) end() {
	_ = c.cmd.Process.Kill() // it may have ended
	_ = c.cmd.Wait()         // it was killed, or its notes were read
}

func (c *process) awaitReady() error {
	line, err := c.out.ReadString('\n')
	if err != nil || strings.TrimSpace(line) != readyLine {
		return c.fault(line, err)
	}
	return nil
}

func (c *process) notes() (*notes, error) {
	var n notes
	if err := json.NewDecoder(c.out).Decode(&n); err != nil {
		return nil, c.fault("", err)
	}
	if n.Failed != "" {
		return nil, errors.New("a process: " + n.Failed)
	}
	return &n, nil
}

// fault returns the error of a process that failed.
func (c *process) fault(line string, err error) error {
	c.end() // so that all of its output has arrived
	if text := strings.TrimSpace(c.err.String()); text != "" {
		return fmt.Errorf("a process: %s", text)
	}
	return fmt.Errorf("a process said %q: %w", strings.TrimSpace(line), errors.Join(err, io.ErrUnexpectedEOF))
}

// Work runs one process of the scenarios with several processes: it reads its order from in, and
// writes what it measured to out. find returns the engine at a URL, with its contenders.
//
// Errors: those of in, out and find. Later failures are reported on out.
func Work(ctx context.Context, in io.Reader, out io.Writer, find func(ctx context.Context, url, beside string) (*Engine, error)) error {
	lines := bufio.NewReader(in)
	text, err := lines.ReadString('\n')
	if err != nil {
		return fmt.Errorf("read the task: %w", err)
	}
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return fmt.Errorf("read the task: %w", err)
	}
	e, err := find(ctx, o.URL, o.Beside)
	if err != nil {
		return err
	}
	n, err := o.carryOut(ctx, e, lines, out)
	if err := errors.Join(err, e.Close()); err != nil {
		n = &notes{Failed: err.Error()}
	}
	if err := json.NewEncoder(out).Encode(n); err != nil {
		return fmt.Errorf("report the notes: %w", err)
	}
	return nil
}

func (o *order) carryOut(ctx context.Context, e *Engine, lines *bufio.Reader, out io.Writer) (*notes, error) {
	t := &Trial{Engine: e, TTL: o.TTL}
	for i := range e.Contenders {
		if e.Contenders[i].Name == o.Contender {
			t.Contender = &e.Contenders[i]
		}
	}
	if t.Contender == nil {
		return nil, fmt.Errorf("there is no %s here", o.Contender)
	}
	locker, closeLocker, err := t.open(ctx, o.Goroutines)
	if err != nil {
		return nil, err
	}
	n, err := o.measure(ctx, locker, lines, out)
	return n, errors.Join(err, closeLocker())
}

func (o *order) measure(ctx context.Context, locker Locker, lines *bufio.Reader, out io.Writer) (*notes, error) {
	s := &scene{group: group{goroutines: o.Goroutines, one: o.One}, prefix: o.Prefix, first: o.First}
	workers := s.workers([]Locker{locker})
	for _, w := range workers {
		g, err := openGuard(filepath.Join(o.Guards, filepath.Base(w.spot.name)))
		if err != nil {
			return nil, err
		}
		w.guard = g
		defer g.close()
	}
	if err := s.warm(ctx, workers); err != nil {
		return nil, fmt.Errorf("warm up: %w", err)
	}
	fmt.Fprintln(out, readyLine)
	if _, err := lines.ReadString('\n'); err != nil {
		return nil, fmt.Errorf("wait for the beginning: %w", err)
	}
	s.begin = time.Now()
	err := s.each(ctx, workers, func(ctx context.Context, _ int, w *worker) error { return w.loop(ctx) }, func(failed context.Context) {
		ended := make(chan struct{})
		go func() {
			_, _ = io.Copy(io.Discard, lines) // until the end of the input
			close(ended)
		}()
		select {
		case <-ended:
		case <-failed.Done():
		}
		s.stopped.Store(true)
	})
	if err != nil {
		return nil, err
	}
	n := &notes{Grants: s.grants.Load()}
	for _, spot := range s.spots {
		n.Doubles += spot.Doubles()
		n.TokenFaults += spot.TokenFaults()
	}
	for _, w := range workers {
		n.Doubles += w.guarded
		n.Workers = append(n.Workers, workerNotes{Waits: w.waits, Pairs: w.pairs, Held: w.held})
	}
	return n, nil
}

// spotName returns the lock name of a goroutine.
func (s *scene) spotName(i int) string {
	if s.one {
		return s.prefix + "one"
	}
	return s.prefix + strconv.Itoa(s.first+i)
}
