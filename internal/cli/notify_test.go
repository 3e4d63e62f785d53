//go:build linux

package cli_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testserver"
)

// notifications listens as a service manager does and returns the states that arrive.
func notifications(t *testing.T, path string) <-chan string {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	states := make(chan string, 16)
	go func() {
		defer close(states)
		for b := make([]byte, 4096); ; {
			n, err := conn.Read(b)
			if err != nil {
				return
			}
			states <- string(b[:n])
		}
	}()
	t.Cleanup(func() { _ = conn.Close() })
	return states
}

// A service manager learns that the server listens, and that it begins to stop; never that it is
// ready before a client can connect.
func TestServeNotifies(t *testing.T) {
	t.Parallel()
	for name, socket := range map[string]string{
		"a path":               filepath.Join(testserver.Dir(t), "notify"),
		"an abstract name":     fmt.Sprintf("@holdfast-test-%d", os.Getpid()),
		"no node has admitted": filepath.Join(testserver.Dir(t), "notify"), // an operator has to reach a node that waits
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			states := notifications(t, socket)
			addr := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
			args := []string{"serve", "--listen", addr, "--data-dir", filepath.Join(testserver.Dir(t), "data")}
			if strings.HasPrefix(name, "no node") {
				args = append(args, "--name", "a", "--cluster", fmt.Sprintf("a=http://127.0.0.1:%d,b=http://127.0.0.1:%d", testserver.FreePort(t), testserver.FreePort(t)))
			}
			p := testserver.Start(t, testserver.Command{Path: binary, Args: args, Env: []string{"NOTIFY_SOCKET=" + socket, "XDG_STATE_HOME=" + testserver.Dir(t)}})
			if got := nextState(t, states); got != "READY=1" {
				t.Errorf("the first state is %q", got)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/healthz", nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatalf("it is not ready: %v", err)
			}
			_ = res.Body.Close()
			p.Signal(syscall.SIGTERM)
			if got := nextState(t, states); got != "STOPPING=1" {
				t.Errorf("the second state is %q", got)
			}
		})
	}
}

func nextState(t *testing.T, states <-chan string) string {
	t.Helper()
	select {
	case s := <-states:
		return s
	case <-time.After(time.Minute):
		t.Fatal("nothing was sent within a minute")
		return ""
	}
}

// A server whose service manager cannot be reached says so, and serves.
func TestServeWithoutItsManager(t *testing.T) {
	t.Parallel()
	addr := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	p := testserver.Start(t, testserver.Command{
		Path: binary, Args: []string{"serve", "--listen", addr, "--data-dir", filepath.Join(testserver.Dir(t), "data")},
		Env: []string{"NOTIFY_SOCKET=" + filepath.Join(testserver.Dir(t), "none")},
	})
	p.Await(time.Minute, func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	await(t, time.Minute, "it warns", func() bool { return strings.Contains(p.Log(), "was not told READY=1") })
}
