package e2e_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// board stands between the members of a cluster. It knows which process made a connection, so
// that it can cut one member off from the others although all of them are reached at one
// address each.
type board struct {
	t     testing.TB
	mu    sync.Mutex
	lines map[*line]struct{}
	away  func(*line) bool // nil: no connection is
	work  sync.WaitGroup
	ports []net.Listener
}

// line is a connection between two members.
type line struct {
	from    int // the process that made it
	to      string
	ends    [2]net.Conn
	dropped bool // something was lost: it cannot continue
}

func newBoard(t testing.TB) *board {
	t.Helper()
	b := &board{t: t, lines: make(map[*line]struct{})}
	t.Cleanup(func() {
		for _, l := range b.ports {
			_ = l.Close()
		}
		b.mu.Lock()
		for l := range b.lines {
			l.close()
		}
		b.mu.Unlock()
		b.work.Wait()
	})
	return b
}

func (l *line) close() {
	for _, c := range l.ends {
		if c != nil {
			_ = c.Close()
		}
	}
}

// reach returns an address by which the member that listens at another one is reached.
func (b *board) reach(listens string) string {
	port, err := new(net.ListenConfig).Listen(b.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	b.ports = append(b.ports, port)
	b.work.Go(func() {
		for {
			c, err := port.Accept()
			if err != nil {
				return
			}
			b.work.Go(func() { b.carry(c, listens) })
		}
	})
	return port.Addr().String()
}

func (b *board) carry(c net.Conn, to string) {
	l := &line{from: processOf(c), to: to, ends: [2]net.Conn{c, nil}}
	up, err := net.Dial("tcp", to) //nolint:noctx // it is closed with the board
	if err != nil {
		l.close()
		return
	}
	l.ends[1] = up
	b.mu.Lock()
	b.lines[l] = struct{}{}
	b.mu.Unlock()
	var both sync.WaitGroup
	for i := range l.ends {
		both.Go(func() { b.pump(l, i); l.close() })
	}
	both.Wait()
	b.mu.Lock()
	delete(b.lines, l)
	b.mu.Unlock()
}

// pump carries what one end sends to the other, or drops it.
func (b *board) pump(l *line, i int) {
	const size = 32 << 10
	buf := make([]byte, size)
	for {
		n, err := l.ends[i].Read(buf)
		b.mu.Lock()
		cut := b.away != nil && b.away(l)
		l.dropped = l.dropped || cut && n > 0
		b.mu.Unlock()
		if !cut && n > 0 {
			if _, werr := l.ends[1-i].Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// cut drops everything between a member and the others, in silence.
func (b *board) cut(pid int, listens string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away = func(l *line) bool { return l.from == pid || l.to == listens }
}

// heal ends the cut. Connections that have lost something are closed.
func (b *board) heal() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away = nil
	for l := range b.lines {
		if l.dropped {
			l.close()
		}
	}
}

// processOf is the process at the other end of a connection on this machine; 0 where it is
// gone.
func processOf(c net.Conn) int {
	remote := c.RemoteAddr().(*net.TCPAddr)
	inode := inodeOf(remote.Port, c.LocalAddr().(*net.TCPAddr).Port)
	if inode == "" {
		return 0
	}
	found, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range found {
		if to, err := os.Readlink(fd); err == nil && to == "socket:["+inode+"]" {
			pid, _ := strconv.Atoi(strings.Split(fd, "/")[2])
			return pid
		}
	}
	return 0
}

// inodeOf is the inode of the socket with these ports, on the side of the first.
func inodeOf(own, other int) string {
	table, err := os.Open("/proc/net/tcp")
	if err != nil {
		return ""
	}
	defer func() { _ = table.Close() }()
	want := [2]string{fmt.Sprintf("0100007F:%04X", own), fmt.Sprintf("0100007F:%04X", other)}
	for lines := bufio.NewScanner(table); lines.Scan(); {
		const local, remote, inode = 1, 2, 9
		f := strings.Fields(lines.Text())
		if len(f) > inode && f[local] == want[0] && f[remote] == want[1] {
			return f[inode]
		}
	}
	return ""
}
