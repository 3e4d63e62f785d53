package k8slock

import (
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
)

// What is being made while the transport is closed does not stay: no connection outlives
// it.
func TestWiresEnd(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // of a test
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w := &wires{Transport: &http.Transport{}, open: make(map[*wire]struct{})}
	early, err := w.dial(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	given, err := w.dial(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := given.Close(); err != nil || len(w.open) != 1 {
		t.Errorf("%d connections are open: %v", len(w.open), err)
	}
	w.close()
	if _, err := early.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the connection is open: %v", err)
	}
	if late, err := w.dial(t.Context(), "tcp", l.Addr().String()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("connected afterwards: %v, %v", late, err)
	}
}
