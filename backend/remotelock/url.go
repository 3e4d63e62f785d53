package remotelock

import (
	"crypto/tls"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/internal/connect"
)

// defaultPort is the port of a server whose URL has none.
const defaultPort = "7420"

// target is what a URL names.
type target struct {
	bases  []*url.URL // of the servers: http or https, and a port
	socket string     // the path of a Unix socket; empty: none
	token  *token
	tls    *tls.Config // nil: without TLS
}

// parse parses and checks the URL: see docs/backends/holdfast.md.
//
// Errors: *InvalidError, which never contains the token.
func parse(rawURL string) (*target, error) {
	// In a malformed URL the token can be anywhere.
	const shown = "not shown, for there may be a token in it"
	first, others := servers(rawURL)
	u, err := url.Parse(first)
	if err != nil {
		return nil, invalid("url", shown, "a URL like holdfast://host:7420")
	}
	t := &target{token: new(token)}
	base := url.URL{Scheme: "http", Host: u.Host, Path: strings.TrimSuffix(u.Path, "/")}
	switch u.Scheme {
	case "holdfast":
	case "holdfasts":
		base.Scheme = "https"
	case "holdfast+unix":
		t.socket, base.Host, base.Path = u.Path, "localhost", ""
	default:
		return nil, invalid("url", shown, "holdfast://, holdfasts:// or holdfast+unix://")
	}
	switch {
	case u.Scheme == "holdfast+unix" && (len(others) > 0 || u.Host != "" || !strings.HasPrefix(u.Path, "/") || strings.HasSuffix(u.Path, "/")):
		return nil, invalid("url", shown, "holdfast+unix:// and the absolute path of a socket")
	case u.Fragment != "" || u.ForceQuery:
		return nil, invalid("url", shown, "without a fragment")
	case u.User.Username() != "":
		return nil, invalid("url", shown, "without a user name: a token is given as a password")
	case len(others) >= maxServers:
		return nil, invalid("url", shown, "with at most "+strconv.Itoa(maxServers)+" servers")
	}
	if t.socket != "" {
		t.bases = []*url.URL{&base}
	} else if err := t.add(base, append([]string{u.Host}, others...)); err != nil {
		return nil, err
	}
	t.token.value, _ = u.User.Password()
	return t, t.parameters(u.RawQuery)
}

// maxServers bounds the servers in a URL.
const maxServers = 16

// servers splits a URL with several hosts, between commas, into the URL of the first one and the other
// hosts.
func servers(rawURL string) (string, []string) {
	scheme, rest, ok := strings.Cut(rawURL, "://")
	if !ok {
		return rawURL, nil
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	begin := strings.LastIndexByte(rest[:end], '@') + 1
	hosts := strings.Split(rest[begin:end], ",")
	return scheme + "://" + rest[:begin] + hosts[0] + rest[end:], hosts[1:]
}

// add adds the servers, which differ from base in the host.
func (t *target) add(base url.URL, hosts []string) error {
	const shown = "not shown, for there may be a token in it"
	for _, host := range hosts {
		u, err := url.Parse("http://" + host)
		switch {
		case err != nil || u.Host != host || u.Hostname() == "":
			return invalid("url", shown, "with a host, or with hosts between commas")
		case u.Port() != "" && !isPort(u.Port()):
			return invalid("url", shown, "with a port of 1 to 65535")
		case u.Port() == "":
			host = net.JoinHostPort(u.Hostname(), defaultPort)
		}
		at := base
		at.Host = host
		t.bases = append(t.bases, &at)
	}
	return nil
}

// parameters reads the parameters of a URL.
func (t *target) parameters(query string) error {
	params, err := connect.Params(query, append(connect.TLSParams(), tokenFileParam)...)
	if err != nil {
		return err
	}
	t.token.file = params.Get(tokenFileParam)
	t.tls, err = connect.TLS(params, t.bases[0].Scheme == "https", "holdfasts")
	return err
}

const tokenFileParam = "token_file"

// WithTokenFile adds the file of a token to the URL of Holdfast servers that has no token. Any other URL is
// returned as it is, and so is every URL if file is empty.
func WithTokenFile(rawURL, file string) string {
	first, _ := servers(rawURL)
	u, err := url.Parse(first)
	if file == "" || err != nil || !strings.HasPrefix(u.Scheme, "holdfast") || u.User != nil || u.Query().Has(tokenFileParam) || u.ForceQuery || u.Fragment != "" {
		return rawURL
	}
	separator := "?"
	if u.RawQuery != "" {
		separator = "&"
	}
	return rawURL + separator + tokenFileParam + "=" + url.QueryEscape(file)
}

// mayCarry refuses a token that would be sent in the clear to another host.
//
// Errors: *InvalidError.
func (t *target) mayCarry() error {
	if t.token.none() || t.socket != "" {
		return nil
	}
	for _, base := range t.bases {
		if base.Scheme != "https" && !connect.Loopback(base.Hostname()) {
			return invalid("url", strconv.Quote(base.Redacted()), "holdfasts://: a token is not sent over plain HTTP, except to this host")
		}
	}
	return nil
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// token is a bearer token. One in a file is read again when it is older than a second, so that it
// can be replaced while the program runs. Its methods are safe for concurrent use.
type token struct {
	file string // empty: none

	mu    sync.Mutex
	value string
	read  time.Time
}

func (t *token) none() bool { return t.file == "" && t.value == "" }

// get returns the token, or "" if there is none. When the file cannot be read any more, the token that
// it had stays.
//
// Errors: *InvalidError if the file could never be read.
func (t *token) get() (string, error) {
	const fresh = time.Second
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file == "" || !t.read.IsZero() && time.Since(t.read) < fresh {
		return t.value, nil
	}
	text, err := os.ReadFile(t.file)
	value := strings.TrimSpace(string(text))
	switch {
	case err == nil && value != "" && !strings.ContainsAny(value, "\r\n"):
		t.value = value
	case t.read.IsZero():
		return "", invalid(tokenFileParam, strconv.Quote(t.file), "a readable file with a token")
	}
	t.read = time.Now()
	return t.value, nil
}
