//go:build linux || darwin || freebsd

package sqlitelock

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// inbox is a datagram socket of this backend value. Other processes notify it that something
// was written that concerns it, and it notifies them.
//
// The sockets are files in a directory beside the database, so that every user of the one may use
// the other, containers included. The directory is accessed through its descriptor, because the
// name of a socket may have 108 bytes only.
type inbox struct {
	dir  string // of the sockets
	dirf *os.File
	name string
	conn *net.UnixConn // nil: not yet
}

// openInbox creates the socket with that name, and removes those that dead processes left. The caller has the
// turn: a socket that is just being created looks dead.
func openInbox(dir, name string, rights os.FileMode) (*inbox, error) {
	err := os.Mkdir(dir, 0o700)
	if err == nil && rights != ownerOnly {
		err = os.Chmod(dir, 0o770|os.ModeSetgid)
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("directory of sockets: %w", err)
	}
	f, err := os.Open(dir) //nolint:gosec // beside the caller's file
	if err != nil {
		return nil, fmt.Errorf("directory of sockets: %w", err)
	}
	m := &inbox{dir: dir, dirf: f, name: name}
	if m.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: m.path(name)}); err != nil {
		_ = m.close()
		return nil, fmt.Errorf("socket %s: %w", name, err)
	}
	if rights != ownerOnly {
		_ = os.Chmod(filepath.Join(dir, name), rights) // without it this value has its timer
	}
	m.sweep()
	return m, nil
}

// sweep removes the sockets without a listener.
func (m *inbox) sweep() {
	names, err := m.dirf.Readdirnames(-1)
	if err != nil {
		return // they do no harm
	}
	for _, name := range names {
		conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Net: "unixgram", Name: m.path(name)})
		if err == nil {
			err = conn.Close()
		}
		if errors.Is(err, unix.ECONNREFUSED) {
			_ = os.Remove(filepath.Join(m.dir, name))
		}
	}
}

// path returns a socket's name in the form that the system wants.
func (m *inbox) path(name string) string {
	const most = 100 // bytes; the least of all systems is 104, with a zero byte
	path := filepath.Join(m.dir, name)
	if len(path) > most && runtime.GOOS == "linux" {
		return "/proc/self/fd/" + strconv.Itoa(int(m.dirf.Fd())) + "/" + name
	}
	return path
}

// crowded is how many unread datagrams may be all that an inbox has room for. No system has room for fewer.
const crowded = 8

// receive calls f with what the datagrams that are there ask for, from one goroutine, until hangUp. Where there are
// so many that others may not have fitted, that is everything.
func (m *inbox) receive(f func(notification)) error {
	conn, err := m.conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("inbox: %w", err)
	}
	buf := make([]byte, maxNotification)
	for {
		var l notification
		var failed error
		n := 0
		err := conn.Read(func(fd uintptr) bool {
			for n < crowded {
				size, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
				if errors.Is(err, unix.EAGAIN) {
					return n > 0
				}
				if err != nil && !errors.Is(err, unix.EINTR) {
					failed = err
					return true
				}
				if err == nil {
					n++
					l.parse(string(buf[:size]))
				}
			}
			l.All = true
			return true
		})
		if err = errors.Join(err, failed); err != nil {
			return fmt.Errorf("inbox: %w", err)
		}
		f(l)
	}
}

// send sends a datagram, and never blocks. Where the inbox has no room for it, its owner has as many to read that it
// reads everything.
func (m *inbox) send(addr, lines string) {
	if strings.Contains(addr, "/") {
		return // it is not a name that was made here
	}
	to := m.path(addr)
	err := write(m.conn, func(fd int) error {
		return unix.Sendto(fd, []byte(lines), unix.MSG_DONTWAIT, &unix.SockaddrUnix{Name: to})
	})
	if err == nil || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT) {
		return
	}
	// What stopped processes have not read fills this socket's buffer. Another socket has one of its own.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Net: "unixgram", Name: to})
	if err != nil {
		return
	}
	_ = write(conn, func(fd int) error {
		_, err := unix.Write(fd, []byte(lines))
		return err //nolint:wrapcheck // the timer of the other side is there for it
	})
	_ = conn.Close()
}

// write calls f once with the descriptor, whether or not there is room.
func write(c *net.UnixConn, f func(fd int) error) error {
	conn, err := c.SyscallConn()
	if err != nil {
		return err //nolint:wrapcheck // send drops it
	}
	var failed error
	err = conn.Write(func(fd uintptr) bool {
		failed = f(int(fd))
		return true
	})
	return errors.Join(err, failed)
}

// hangUp ends receive.
func (m *inbox) hangUp() { _ = m.conn.SetReadDeadline(time.Unix(1, 0)) }

func (m *inbox) close() error {
	var err error
	if m.conn != nil {
		err = m.conn.Close()
		// Another value's sweep may have removed it just now: it has no listener.
		if gone := os.Remove(filepath.Join(m.dir, m.name)); !errors.Is(gone, os.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	err = errors.Join(err, m.dirf.Close())
	_ = os.Remove(m.dir) // succeeds for the last one
	return err
}
