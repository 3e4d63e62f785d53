//go:build linux

package cli_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// A service manager learns that the server listens, not before a client can connect, and that it begins to stop.
func TestServeNotifies(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(testserver.Dir(t), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	next := func() string {
		t.Helper()
		b := make([]byte, 4096)
		_ = manager.SetReadDeadline(time.Now().Add(time.Minute))
		n, err := manager.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	addr := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	p := testserver.Start(t, testserver.Command{
		Path: binary, Args: []string{"serve", "--listen", addr, "--data-dir", filepath.Join(testserver.Dir(t), "data")},
		Env: []string{"NOTIFY_SOCKET=" + socket},
	})
	if got := next(); got != "READY=1" {
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
	if got := next(); got != "STOPPING=1" {
		t.Errorf("the second state is %q", got)
	}
}
