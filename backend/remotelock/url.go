package remotelock

import (
	"crypto/tls"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
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

// schemes are those of the URLs: HTTP, HTTPS, and a Unix socket.
const plain, secure, unix = "holdfast", "holdfasts", "holdfast+unix"

// maxServers bounds the servers in a URL.
const maxServers = 16

const tokenFileParam = "token_file"

// parse parses and checks the URL: see docs/backends/holdfast.md.
//
// Errors: *InvalidError, which never contains the token.
func parse(rawURL string) (*target, error) {
	p, err := connect.Split(rawURL, "holdfast://, holdfasts:// or holdfast+unix://", plain, secure, unix)
	if err != nil {
		return nil, err
	}
	if strings.Contains(p.User, "/") { // the @ is in the path, and what is after it is no host
		return nil, connect.URLError(connect.Hidden, "with %40 for an @ in the path, and %2F for a slash in the token")
	}
	user, password, err := connect.User(p.User)
	if err != nil {
		return nil, err
	}
	hosts := strings.Split(p.Hosts, ",")
	switch {
	case user != "":
		return nil, connect.URLError(connect.Hidden, "without a user name: a token is given as a password")
	case len(hosts) > maxServers:
		return nil, connect.URLError(connect.Hidden, "with at most "+strconv.Itoa(maxServers)+" servers")
	case strings.HasSuffix(rawURL, "?"):
		return nil, connect.URLError("?", "with parameters after it")
	}
	params, err := connect.Params(p.Query, append(connect.TLSParams(), tokenFileParam)...)
	if err != nil {
		return nil, err
	}
	t := &target{token: &token{value: password, file: params.Get(tokenFileParam)}}
	if t.tls, err = connect.TLS(params, p.Scheme == secure, secure); err != nil {
		return nil, err
	}
	if p.Scheme == unix {
		return t, t.setSocket(p)
	}
	return t, t.setBases(hosts, p)
}

func (t *target) setSocket(p connect.Parts) error {
	path, err := url.PathUnescape("/" + p.Path)
	if err != nil || p.Hosts != "" || strings.HasSuffix(path, "/") {
		return connect.URLError(connect.Hidden, "holdfast+unix:// and the absolute path of a socket")
	}
	t.socket, t.bases = path, []*url.URL{{Scheme: "http", Host: "localhost"}}
	return nil
}

func (t *target) setBases(hosts []string, p connect.Parts) error {
	scheme := "http://"
	if p.Scheme == secure {
		scheme = "https://"
	}
	for _, host := range hosts {
		address, ok := backend.Endpoint(host, defaultPort)
		base, err := url.Parse(strings.TrimSuffix(scheme+address+"/"+p.Path, "/"))
		if !ok || err != nil {
			return connect.URLError(connect.Hidden, "with a host, or with hosts between commas, and ports of 1 to 65535")
		}
		t.bases = append(t.bases, base)
	}
	return nil
}

// WithTokenFile adds the file of a token to the URL of Holdfast servers that has no token. Any other URL is
// returned as it is, and so is every URL if file is empty.
func WithTokenFile(rawURL, file string) string {
	p, err := connect.Split(rawURL, "", plain, secure, unix)
	params, _ := url.ParseQuery(p.Query)
	if file == "" || err != nil || p.HasAt || params.Has(tokenFileParam) || strings.HasSuffix(rawURL, "?") {
		return rawURL
	}
	separator := "?"
	if p.Query != "" {
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
