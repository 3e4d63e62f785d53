package cli

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// The states that serve reports to the service manager.
const (
	notifyReady    = "READY=1"
	notifyStopping = "STOPPING=1"
)

// notify reports a state to the service manager that started this process with NOTIFY_SOCKET, as
// systemd does with Type=notify: one datagram. Without the variable it does nothing. A failure is
// a warning: systemd ends a service that does not become ready.
func (a *app) notify(state string) {
	if err := notifySocket(os.Getenv("NOTIFY_SOCKET"), state); err != nil {
		a.warn("the service manager was not told %s: %v", state, err)
	}
}

// notifySocket sends a datagram to a Unix socket. A path that begins with @ is of the abstract
// namespace of Linux.
func notifySocket(path, state string) error {
	if path == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	if err = conn.SetWriteDeadline(time.Now().Add(time.Second)); err == nil { // a full queue must not stop the server
		_, err = conn.Write([]byte(state))
	}
	return errors.Join(err, conn.Close())
}
