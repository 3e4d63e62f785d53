package zklock

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"
)

// hosts tells the library where to connect. The library's own looks the names up once, when
// the connection is made, and makes its caller wait for that: servers that have moved to
// other addresses since, as the pods of a cluster do, are never found again. This one
// looks them up whenever it has been through all addresses in vain. And it leaves one that
// hangs out for a while: the others may need a moment to find another leader, and who asks
// the one that hangs meanwhile waits for that for nothing.
type hosts struct {
	lookup func(ctx context.Context, host string) ([]string, error)
	over   <-chan struct{} // ends a lookup

	mu      sync.Mutex
	servers []string
	addrs   []string
	at      int // the next of addrs
	tried   int // of addrs, since there was a connection
	hangs   string
	until   time.Time // for so long hangs is left out
}

// lookupPatience is for all names together.
const lookupPatience = 3 * time.Second

// Init takes the names. It implements zk.HostProvider, as the others do.
func (h *hosts) Init(servers []string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.servers = servers
	return nil
}

// Len is how many addresses there are.
func (h *hosts) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.addrs)
}

// Next gives an address, and whether all have been tried.
func (h *hosts) Next() (string, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	again := len(h.addrs) > 0 && h.tried >= len(h.addrs)
	if again || len(h.addrs) == 0 {
		h.find()
		h.tried = 0
	}
	h.tried++
	h.at++
	return h.addrs[h.at%len(h.addrs)], again
}

// silent leaves an address out for so long, in later rounds, where there are others.
func (h *hosts) silent(addr string, d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hangs, h.until = addr, time.Now().Add(d)
}

// Connected notes that the newest address is good.
func (h *hosts) Connected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tried = 1
}

// find looks the names up. One that is not found is left to who dials.
func (h *hosts) find() {
	ctx, cancel := context.WithTimeout(context.Background(), lookupPatience)
	defer cancel()
	go func() {
		select {
		case <-h.over:
			cancel()
		case <-ctx.Done():
		}
	}()
	var addrs []string
	for _, server := range h.servers {
		host, port, err := net.SplitHostPort(server)
		if err != nil {
			continue // they were made by JoinHostPort
		}
		found, err := h.lookup(ctx, host)
		if err != nil || len(found) == 0 {
			found = []string{host}
		}
		for _, addr := range found {
			addrs = append(addrs, net.JoinHostPort(addr, port))
		}
	}
	if time.Now().Before(h.until) {
		others := slices.DeleteFunc(slices.Clone(addrs), func(a string) bool { return a == h.hangs })
		if len(others) > 0 {
			addrs = others
		}
	}
	rand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	h.addrs = addrs
}
