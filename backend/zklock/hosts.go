package zklock

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"
)

// hosts tells the library where to connect. The library's own provider resolves the names once,
// when the connection is made, and makes its caller wait for that: servers that have moved to other
// addresses since, as the pods of a cluster do, are never found again. This one resolves them
// whenever all addresses have failed. And it omits an address that hangs for a while: the other
// servers may need a moment to elect another leader, and a client that tries the one that hangs in
// the meantime loses that time.
type hosts struct {
	lookup func(ctx context.Context, host string) ([]string, error)
	life   context.Context //nolint:containedctx // ends a lookup

	mu      sync.Mutex
	servers []string
	addrs   []string
	names   map[string]string // the server of each address that was found
	at      int               // the index of the next of addrs
	tried   int               // number of addrs tried since there was a connection
	hangs   string
	until   time.Time // hangs is omitted until then
}

// lookupPatience is for all names together.
const lookupPatience = 3 * time.Second

// Init sets the names. It implements zk.HostProvider, as the other methods do.
func (h *hosts) Init(servers []string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.servers = servers
	return nil
}

// Len returns the number of addresses.
func (h *hosts) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.addrs)
}

// Next returns an address, and whether all have been tried.
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

// server returns the server that has the address.
func (h *hosts) server(addr string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return cmp.Or(h.names[addr], addr)
}

// count returns the number of addresses, with the one that is omitted.
func (h *hosts) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.names)
}

// silent omits an address for that long, in later rounds, if there are others.
func (h *hosts) silent(addr string, d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hangs, h.until = addr, time.Now().Add(d)
}

// Connected records that the newest address works.
func (h *hosts) Connected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tried = 1
}

// find resolves the names. A name that does not resolve is left to the dialer.
func (h *hosts) find() {
	ctx, cancel := context.WithTimeout(h.life, lookupPatience)
	defer cancel()
	var addrs []string
	h.names = make(map[string]string)
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
			h.names[net.JoinHostPort(addr, port)] = server
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
