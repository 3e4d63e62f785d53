package connect_test

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/connect"
)

// The first Read reports what first returns, and the others what they get.
func TestFirstRead(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{"an answer": "ab", "none": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, server := net.Pipe()
			defer func() { _ = conn.Close() }()
			go func() {
				if answer != "" {
					_, _ = io.WriteString(server, answer)
				}
				_ = server.Close()
			}()
			var seen []error
			watched := connect.FirstRead(conn, func(err error) error { seen = append(seen, err); return errors.Join(errStore, err) })
			got, err := io.ReadAll(watched)
			if string(got) != answer || len(seen) != 1 || (seen[0] == nil) != (answer != "") || errors.Is(err, errStore) != (answer == "") {
				t.Errorf("%q, %v, after %v", got, err, seen)
			}
		})
	}
}

// hungUp is a connection that the other side has closed after it said why.
type hungUp struct {
	net.Conn
	why     error
	reading chan struct{} // closed by the first Read
	told    chan struct{} // Read returns when it is closed
}

func (h *hungUp) Write([]byte) (int, error)       { return 0, syscall.EPIPE }
func (h *hungUp) SetReadDeadline(time.Time) error { return nil }

func (h *hungUp) Read([]byte) (int, error) {
	close(h.reading)
	<-h.told
	return 0, h.why
}

// A Write that fails because the server has refused the client and is gone learns why: it reads that, or waits until
// the Read that is in progress has.
func TestWriteLearnsWhy(t *testing.T) {
	t.Parallel()
	watch := func() (*hungUp, net.Conn, *error) {
		h := &hungUp{why: errStore, reading: make(chan struct{}), told: make(chan struct{})}
		var seen error
		return h, connect.FirstRead(h, func(err error) error { seen = err; return err }), &seen
	}
	t.Run("nobody reads", func(t *testing.T) {
		t.Parallel()
		h, conn, seen := watch()
		close(h.told)
		if _, err := conn.Write([]byte("a")); !errors.Is(err, errStore) || !errors.Is(*seen, errStore) {
			t.Errorf("%v, after %v", err, *seen)
		}
	})
	t.Run("a Read is in progress", func(t *testing.T) {
		t.Parallel()
		h, conn, seen := watch()
		read := make(chan error)
		go func() {
			_, err := conn.Read(nil)
			read <- err
		}()
		<-h.reading
		time.AfterFunc(20*time.Millisecond, func() { close(h.told) })
		if _, err := conn.Write([]byte("a")); !errors.Is(err, syscall.EPIPE) || !errors.Is(*seen, errStore) {
			t.Errorf("%v, after %v", err, *seen)
		}
		if err := <-read; !errors.Is(err, errStore) {
			t.Errorf("Read: %v", err)
		}
	})
}
