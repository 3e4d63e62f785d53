//go:build linux || darwin || freebsd

package sqlitelock

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// inbox is a datagram socket of this backend value. Other processes notify it that something
// was written that concerns it, and it notifies them.
//
// The sockets are files in a directory beside the database, so that every user of the one may use
// the other, containers included. The directory is accessed through its descriptor, because the
// name of a socket may have 108 bytes only. Where the file system has no sockets, Linux has names
// that are not files.
type inbox struct {
	dir  string   // of the sockets; empty: the socket is no file
	dirf *os.File // the same, open; nil as above
	name string
	conn *net.UnixConn
	out  int // socket to send from
	hash string
}

// A name that begins with this is not the name of a file.
const abstract = "@"

// openInbox creates the socket, and removes those that dead processes left. The caller has the
// turn: a socket that is just being created looks dead.
func openInbox(dir string, rights os.FileMode) (*inbox, error) {
	syscall.ForkLock.RLock() // no child may inherit it
	out, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err == nil {
		unix.CloseOnExec(out)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	sum := sha256.Sum256([]byte(dir))
	m := &inbox{out: out, hash: hex.EncodeToString(sum[:8])}
	if err := errors.Join(unix.SetNonblock(out, true), m.listen(dir, rights)); err != nil {
		_ = m.close()
		return nil, fmt.Errorf("inbox: %w", err)
	}
	return m, nil
}

func (m *inbox) listen(dir string, rights os.FileMode) error {
	m.name = strings.ToLower(rand.Text())[:20]
	err := m.listenFile(dir, rights)
	if err == nil || runtime.GOOS != "linux" {
		return err
	}
	if m.dirf != nil {
		_ = m.dirf.Close()
		m.dirf = nil
	}
	m.dir, m.name = "", abstract+m.name
	return m.bind()
}

func (m *inbox) listenFile(dir string, rights os.FileMode) error {
	err := os.Mkdir(dir, 0o700)
	if err == nil && rights != ownerOnly {
		err = os.Chmod(dir, 0o770|os.ModeSetgid)
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("directory of sockets: %w", err)
	}
	f, err := os.Open(dir) //nolint:gosec // beside the caller's file
	if err != nil {
		return fmt.Errorf("directory of sockets: %w", err)
	}
	m.dir, m.dirf = dir, f
	m.sweep()
	err = m.bind()
	if err == nil && rights != ownerOnly {
		_ = os.Chmod(filepath.Join(dir, m.name), rights) // without it this value has its timer
	}
	return err
}

func (m *inbox) bind() error {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: m.path(m.name)})
	if err != nil {
		return fmt.Errorf("socket %s: %w", m.name, err)
	}
	m.conn = conn
	return nil
}

// sweep removes the sockets without a listener.
func (m *inbox) sweep() {
	names, err := m.dirf.Readdirnames(-1)
	if err != nil {
		return // they do no harm
	}
	for _, name := range names {
		if m.send(name, nil) == sendGone {
			_ = os.Remove(filepath.Join(m.dir, name))
		}
	}
}

// path returns a socket's name in the form that the system wants.
func (m *inbox) path(name string) string {
	if strings.HasPrefix(name, abstract) {
		return abstract + "holdfast-" + m.hash + "-" + name[len(abstract):]
	}
	const most = 100 // bytes; the least of all systems is 104, with a zero byte
	path := filepath.Join(m.dir, name)
	if len(path) > most && runtime.GOOS == "linux" {
		return "/proc/self/fd/" + strconv.Itoa(int(m.dirf.Fd())) + "/" + name
	}
	return path
}

// addr returns the address for other processes.
func (m *inbox) addr() string { return m.name }

// receive passes every datagram to f, from one goroutine, until the inbox is closed. f must not
// keep the bytes.
func (m *inbox) receive(f func([]byte)) error {
	buf := make([]byte, maxNotification)
	for {
		n, err := m.conn.Read(buf)
		if err != nil {
			return fmt.Errorf("inbox: %w", err)
		}
		f(buf[:n])
	}
}

// send sends a datagram, and never blocks.
func (m *inbox) send(addr string, notification []byte) sendState {
	if strings.Contains(addr, "/") || m.dirf == nil && !strings.HasPrefix(addr, abstract) {
		return sendGone // it is not a name that was made here, or a file, and there is no directory
	}
	err := unix.Sendto(m.out, notification, unix.MSG_DONTWAIT, &unix.SockaddrUnix{Name: m.path(addr)})
	switch {
	case err == nil:
		return sent
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOMEM):
		return sendFull
	default:
		return sendGone
	}
}

// hangUp ends receive.
func (m *inbox) hangUp() { _ = m.conn.SetReadDeadline(time.Unix(1, 0)) }

func (m *inbox) close() error {
	var err error
	if m.conn != nil {
		err = m.conn.Close()
	}
	err = errors.Join(err, unix.Close(m.out))
	if m.dirf != nil {
		if m.conn != nil { // another value's sweep may have removed it just now: it has no listener
			if gone := os.Remove(filepath.Join(m.dir, m.name)); !errors.Is(gone, os.ErrNotExist) {
				err = errors.Join(err, gone)
			}
		}
		err = errors.Join(err, m.dirf.Close())
		_ = os.Remove(m.dir) // succeeds for the last one
	}
	return err
}
