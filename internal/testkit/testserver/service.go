package testserver

import (
	"context"
	"errors"
	"os"
	"regexp"
	"syscall"
	"testing"
	"time"
)

// Service starts the test binary as a service in a process of its own, with the environment
// that makes its TestMain do so, on a port that the service chooses, and waits until it reports
// that it listens. It returns the process and the URL.
func Service(t testing.TB, env string, args ...string) (*Process, string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	p := Start(t, Command{Path: exe, Args: append([]string{"--listen", "127.0.0.1:0"}, args...), Env: []string{env}, Interrupt: syscall.SIGTERM})
	line := regexp.MustCompile(`listening on (http://\S+)\n`)
	var url string
	p.Await(time.Minute, func(context.Context) error {
		found := line.FindStringSubmatch(p.Log())
		if found == nil {
			return errors.New("it does not listen")
		}
		url = found[1]
		return nil
	})
	return p, url
}
