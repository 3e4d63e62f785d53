package e2e_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/elector"
	"github.com/holdfast-io/holdfast/open"
)

// candidateURL turns this program into a candidate in a process of its own; see candidateMain.
const (
	candidateURL      = "HOLDFAST_TEST_CANDIDATE_URL"
	candidateElection = "HOLDFAST_TEST_CANDIDATE_ELECTION"
)

// monotonicNow is a clock that all processes of the machine share.
func monotonicNow() (int64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, err
	}
	return ts.Nano(), nil
}

// candidateMain campaigns until its input ends, and reports what happens:
//
//	gained TOKEN            it leads
//	led TOKEN AT            the function has returned; AT is when its context was last alive
//	lost TOKEN, resigned TOKEN
//
// The first line of its input makes the leader check its context without a pause.
func candidateMain(url, election string, in io.Reader, out io.Writer) error {
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	b, err := open.URL(ctx, url, open.Options{})
	if err != nil {
		return err
	}
	defer b.Close()
	c, err := holdfast.New(b, holdfast.Config{TTL: pausedTTL, Owner: "a"})
	if err != nil {
		return err
	}
	defer c.Close(context.WithoutCancel(ctx))
	spin := make(chan struct{}) // closed by the first line
	go func() {
		lines := bufio.NewScanner(in)
		for first := true; lines.Scan(); first = false {
			if first {
				close(spin)
			}
		}
		stop(errShutdown) // the process is told to shut down, or the test has ended
	}()
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format+"\n", args...) }
	e, err := elector.New(c, election, elector.Config{Candidate: "a", Value: "a:80", Hooks: elector.Hooks{
		Gained:   func(_ context.Context, t *elector.Term) { say("gained %d", t.Token()) },
		Lost:     func(_ context.Context, t *elector.Term, _ error) { say("lost %d", t.Token()) },
		Resigned: func(_ context.Context, t *elector.Term, err error) { say("resigned %d %v", t.Token(), err) },
	}})
	if err != nil {
		return err
	}
	err = e.Run(ctx, func(ctx context.Context, term *elector.Term) error {
		select {
		case <-ctx.Done():
			return nil
		case <-spin:
		}
		spin = nil // the next term only waits
		last := int64(0)
		for {
			// Read the clock first: if the context is alive afterwards, it was alive at that time.
			at, err := monotonicNow()
			if err != nil {
				return err
			}
			if ctx.Err() != nil {
				say("led %d %d", term.Token(), last)
				return nil //nolint:nilerr // the end of the term
			}
			if last == 0 {
				say("spinning")
			}
			last = at
			runtime.Gosched()
		}
	})
	if errors.Is(err, errShutdown) {
		return nil
	}
	return err
}

// candidateProcess is a candidate in a process of its own.
type candidateProcess struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string // closed when the process has ended
}

func startCandidate(t *testing.T, url string) *candidateProcess {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0])
	// One thread: the goroutine that runs first when the process resumes runs alone.
	cmd.Env = append(os.Environ(), candidateURL+"="+url, candidateElection+"="+t.Name(), "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &candidateProcess{t, cmd, in, make(chan string, 100)}
	go func() {
		defer close(p.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = in.Close()
		p.signal(syscall.SIGCONT)
		end := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		defer end.Stop()
		for range p.lines { // until the process has ended
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the candidate: %v", err)
		}
	})
	return p
}

func (p *candidateProcess) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Errorf("%v: %v", s, err)
	}
}

func (p *candidateProcess) tell(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

// says waits for a line that begins with the word, and returns the numbers in it.
func (p *candidateProcess) says(word string) [2]int64 {
	p.t.Helper()
	deadline := time.NewTimer(electionPatience)
	defer deadline.Stop()
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("the candidate is gone; waited for %q", word)
			}
			var numbers [2]int64
			if rest, found := strings.CutPrefix(line, word); found {
				_, _ = fmt.Sscan(rest, &numbers[0], &numbers[1])
				return numbers
			}
			if word != "lost" && strings.HasPrefix(line, "lost") {
				p.t.Fatalf("%q; waited for %q", line, word)
			}
		case <-deadline.C:
			p.t.Fatalf("not within %s: %q", electionPatience, word)
		}
	}
}
