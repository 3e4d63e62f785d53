// Mutants puts faults into our own code, one at a time, and runs the tests that must catch
// them: a test that cannot fail shows nothing. The sources are not touched; the compiler gets
// the changed file in place of the original.
//
//	go run ./internal/testkit/mutants [-only text] [-at-once n] [-compile] [target...]
//
// A target is the name of a file in data, such as redis. With -compile no test is run: this
// finds mutants that the compiler refuses. Exit status: 0 when all were caught, 1 when one was
// not, 2 when one could not be tried.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

func main() {
	only := flag.String("only", "", "try only mutants whose name contains this text")
	atOnce := flag.Int("at-once", 1, "how many mutants to try concurrently")
	compile := flag.Bool("compile", false, "only compile them")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	status, err := run(ctx, *only, *atOnce, *compile, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 2
	}
	stop()
	os.Exit(status)
}

func run(ctx context.Context, only string, atOnce int, compile bool, targets []string) (int, error) {
	all, err := mutants()
	if err != nil {
		return 0, err
	}
	all = slices.DeleteFunc(all, func(m mutant) bool {
		return len(targets) > 0 && !slices.Contains(targets, m.target) || !strings.Contains(m.name, only)
	})
	if len(all) == 0 {
		return 0, errors.New("there is no such mutant")
	}
	dir, err := os.MkdirTemp("", "holdfast-mutants-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a folder of the system's own
	var mu sync.Mutex
	var work sync.WaitGroup
	counts := make(map[verdict]int)
	gate := make(chan struct{}, max(1, atOnce))
	for i := range all {
		gate <- struct{}{}
		work.Go(func() {
			defer func() { <-gate }()
			f := all[i].try
			if compile {
				f = all[i].compile
			}
			v, says := f(ctx, filepath.Join(dir, strconv.Itoa(i)))
			mu.Lock()
			defer mu.Unlock()
			counts[v]++
			fmt.Printf("%-9s %-10s %s | %s\n", v, all[i].target, all[i].name, says)
		})
	}
	work.Wait()
	if compile {
		fmt.Printf("%d mutants: %d compile, %d do not\n", len(all), counts[compiles], counts[untried])
	} else {
		fmt.Printf("%d mutants: %d caught, %d survived, %d could not be tried\n", len(all), counts[caught], counts[survived], counts[untried])
	}
	switch {
	case counts[untried] > 0:
		return 2, nil
	case counts[survived] > 0:
		return 1, nil
	}
	return 0, nil
}

type verdict string

const (
	caught   verdict = "caught"
	survived verdict = "SURVIVED"
	untried  verdict = "untried"
	compiles verdict = "compiles"
)

// patience is how long the tests may take. A mutant that makes them hang is caught.
const patience = 3 * time.Minute

// try runs the tests on the mutant, and reports which one caught it.
func (m *mutant) try(ctx context.Context, dir string) (verdict, string) {
	if ctx.Err() != nil {
		return untried, "interrupted"
	}
	overlay, err := m.overlay(dir)
	if err != nil {
		return untried, err.Error()
	}
	begun := time.Now()
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-failfast", "-timeout", patience.String(), "-run", m.tests, "./"+m.pkg) //nolint:gosec // our own data
	// Not a flag: a test that builds a program has to build it with the fault.
	cmd.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay))
	out, err := cmd.CombinedOutput()
	took := time.Since(begun).Round(time.Second)
	switch {
	case ctx.Err() != nil:
		return untried, "interrupted"
	case err == nil && bytes.Contains(out, []byte("no tests to run")):
		return untried, "no test has a name like " + m.tests
	case err == nil:
		return survived, took.String()
	case bytes.Contains(out, []byte("launch.buildOurs")):
		return untried, "the time was up before a program was built: try again"
	case bytes.Contains(out, []byte("panic: test timed out")):
		return caught, fmt.Sprintf("a test hung, %s", took)
	}
	failed := regexp.MustCompile(`--- FAIL: (\S+)`).FindAllSubmatch(out, -1)
	if len(failed) == 0 && !bytes.Contains(out, []byte("panic: ")) {
		return untried, string(out)
	}
	by := "a panic"
	for _, f := range failed {
		if name := string(f[1]); len(name) > len(by) || by == "a panic" {
			by = name // the innermost
		}
	}
	return caught, fmt.Sprintf("%s, %s", by, took)
}

// compile compiles the mutant and runs nothing.
func (m *mutant) compile(ctx context.Context, dir string) (verdict, string) {
	overlay, err := m.overlay(dir)
	if err != nil {
		return untried, err.Error()
	}
	out, err := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "-o", os.DevNull, "./"+m.folder()).CombinedOutput() //nolint:gosec // our own data
	if err != nil {
		return untried, fmt.Sprintf("%v: %s", err, out)
	}
	return compiles, ""
}

// overlay writes the changed file, and the overlay file that points the compiler to it.
func (m *mutant) overlay(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	path, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(path) //nolint:gosec // our own data
	if err != nil {
		return "", err
	}
	changed, err := m.apply(string(text))
	if err != nil {
		return "", err
	}
	instead := filepath.Join(dir, filepath.Base(m.file))
	spec, err := json.Marshal(map[string]map[string]string{"Replace": {path: instead}})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, errors.Join(os.WriteFile(instead, []byte(changed), 0o600), os.WriteFile(overlay, spec, 0o600)) //nolint:gosec // our own folder
}
