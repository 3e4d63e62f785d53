package runner

import (
	"net"
	"slices"
	"strings"

	"github.com/holdfast-io/holdfast/internal/connect"
)

// endpoints are the parts of a backend's URL that the address of a relay can replace.
type endpoints struct {
	scheme string
	user   string // including the @; may contain a password
	hosts  []string
	rest   string
}

// defaultPorts returns those of the schemes whose traffic a relay can carry. It cannot carry
// TLS: the certificate is not the relay's.
func defaultPorts() map[string]string {
	return map[string]string{
		"redis": "6379", "redlock": "6379", "etcd": "2379", "zookeeper": "2181", "holdfast": "7420", "consul": "8500", "postgres": "5432", "postgresql": "5432",
		"postgres+advisory": "5432", "mysql": "3306", "mysql+getlock": "3306",
	}
}

// parseEndpoints reports false for a URL that no relay can carry: another scheme, no host, or
// parameters that ask for TLS.
func parseEndpoints(raw string) (endpoints, bool) {
	scheme, rest, ok := strings.Cut(raw, "://")
	port, known := defaultPorts()[scheme]
	if !ok || !known {
		return endpoints{}, false
	}
	e := endpoints{scheme: scheme}
	authority := rest
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, e.rest = rest[:i], rest[i:]
	}
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		e.user, authority = authority[:i+1], authority[i+1:]
	}
	for host := range strings.SplitSeq(authority, ",") {
		if host == "" {
			return endpoints{}, false
		}
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), port)
		}
		e.hosts = append(e.hosts, host)
	}
	return e, !e.verifies()
}

// verifies reports whether the store's client verifies certificates: where a parameter asks for it, and by
// default where a host is not this machine.
func (e endpoints) verifies() bool {
	decides := "tls="
	switch {
	case strings.HasPrefix(e.scheme, "postgres"):
		decides = "sslmode="
	case !strings.HasPrefix(e.scheme, "mysql") && e.scheme != "zookeeper":
		return false
	}
	_, mode, decided := strings.Cut(e.rest, decides)
	return strings.HasPrefix(mode, "verify") || strings.HasPrefix(mode, "true") || strings.Contains(e.rest, "ca=") ||
		!decided && slices.ContainsFunc(e.hosts, func(host string) bool {
			name, _, _ := net.SplitHostPort(host)
			return !connect.Loopback(name)
		})
}

// with returns the URL with other hosts.
func (e endpoints) with(hosts []string) string {
	return e.scheme + "://" + e.user + strings.Join(hosts, ",") + e.rest
}

// Shown returns a URL without possible secrets, for people and for the replay command: it hides
// the password of a user, and parameters with the name of a secret.
func Shown(raw string) string {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return "URL"
	}
	rest, query, _ := strings.Cut(rest, "?")
	path := ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		rest, path = rest[:i], rest[i:]
	}
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		user, _, named := strings.Cut(rest[:i], ":")
		if !named {
			user = "xxxxx" // it may be a token
		}
		rest = user + ":xxxxx" + rest[i:]
	}
	var pairs []string
	for pair := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(pair, "=")
		for _, secret := range []string{"pass", "token", "secret", "key", "auth"} {
			if strings.Contains(strings.ToLower(name), secret) {
				pair = name + "=xxxxx"
			}
		}
		pairs = append(pairs, pair)
	}
	return strings.TrimSuffix(scheme+"://"+rest+path+"?"+strings.Join(pairs, "&"), "?")
}

// inProcess reports whether a backend lives in the process that opens it.
func inProcess(raw string) bool {
	scheme, _, _ := strings.Cut(raw, ":")
	return scheme == "memory"
}
