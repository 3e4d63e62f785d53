package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// nodes are Redis servers of this program, on free ports of the loopback.
type nodes struct {
	addrs []string
	cmds  []*exec.Cmd
}

// url is for nodes that were never used before: they need not wait until old leases have ended.
func (n *nodes) url() string { return "redlock://" + strings.Join(n.addrs, ",") + "?quarantine=off" }

func (n *nodes) end() {
	for _, cmd := range n.cmds {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// startNodes starts three servers, and waits until they take connections.
func startNodes(ctx context.Context, dir string) (*nodes, error) {
	n := &nodes{}
	for range 3 {
		if err := n.start(ctx, dir); err != nil {
			n.end()
			return nil, err
		}
	}
	return n, nil
}

func (n *nodes) start(ctx context.Context, dir string) error {
	addr, err := freeAddr(ctx)
	if err != nil {
		return err
	}
	_, port, _ := strings.Cut(addr, ":")
	cmd := exec.Command("redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", filepath.Clean(dir)) //nolint:gosec,noctx // it ends with end
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start redis-server, or give -backend: %w", err)
	}
	n.addrs, n.cmds = append(n.addrs, addr), append(n.cmds, cmd)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err == nil {
			_ = conn.Close()
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("redis-server at %s does not answer", addr), err)
		}
	}
}

func freeAddr(ctx context.Context) (string, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return ln.Addr().String(), ln.Close()
}
