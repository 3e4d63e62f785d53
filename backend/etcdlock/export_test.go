package etcdlock

import "github.com/holdfast-io/holdfast/backend"

// The internals that the tests outside of the package see.

// EntryKey is the key of an entry in a slot.
func EntryKey(prefix, name, at string, mode backend.Mode, limit int) string {
	return keys{prefix + "/"}.entry(name, slot(at), mode, limit)
}

// ParseKey reads the key of an entry: the name, the limit and the slot.
func ParseKey(prefix, key string) (string, int, string, bool) {
	p, ok := keys{prefix + "/"}.parse(key)
	return p.name, p.limit, string(p.slot), ok
}

// Target is what a URL says.
type Target struct {
	Hosts                  []string
	User, Password, Prefix string
	TLS                    bool
}

// URL reads a URL.
func URL(raw string) (Target, error) {
	t, err := parseURL(raw)
	return Target{t.endpoints, t.user, t.password, t.cfg.Prefix, t.tls}, err
}

// VersionSound reports whether a version of etcd is used without a warning.
func VersionSound(version string) bool { return versionSound(version) }

// Waiting is how many callers are in line for a lock, as far as b knows.
func (b *Backend) Waiting(lock string) int {
	b.lines.mu.Lock()
	defer b.lines.mu.Unlock()
	ln, ok := b.lines.byName[lock]
	if !ok {
		return 0
	}
	n := 0
	for w := range ln.waiters {
		if !w.checking {
			n++
		}
	}
	return n
}

// Slots is how many leases b keeps account of.
func (b *Backend) Slots() int {
	b.slots.mu.Lock()
	defer b.slots.mu.Unlock()
	return len(b.slots.placed)
}
