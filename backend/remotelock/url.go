package remotelock

import (
	"crypto/tls"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/internal/storeurl"
)

// target is what a URL names.
type target struct {
	base   *url.URL
	socket string // the path of a Unix socket; empty: none
	token  *token
	tls    *tls.Config
}

// parse parses and checks the URL. An error never contains the token.
func parse(rawURL string) (*target, error) {
	// In a malformed URL the token can be anywhere.
	const shown = "not shown, for there may be a token in it"
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, invalid("url", shown, "a URL like holdfast://host:7420")
	}
	t := &target{base: &url.URL{Scheme: "http", Host: u.Host, Path: strings.TrimSuffix(u.Path, "/")}, token: new(token)}
	switch u.Scheme {
	case "holdfast":
	case "holdfasts":
		t.base.Scheme = "https"
	case "holdfast+unix":
		t.socket, t.base.Host, t.base.Path = u.Path, "localhost", ""
	default:
		return nil, invalid("url", shown, "holdfast://, holdfasts:// or holdfast+unix://")
	}
	switch {
	case t.socket == "" && u.Hostname() == "":
		return nil, invalid("url", shown, "with a host")
	case u.Scheme == "holdfast+unix" && (u.Host != "" || !strings.HasPrefix(u.Path, "/") || strings.HasSuffix(u.Path, "/")):
		return nil, invalid("url", shown, "holdfast+unix:// and the absolute path of a socket")
	case u.Fragment != "" || u.ForceQuery:
		return nil, invalid("url", shown, "without a fragment")
	case u.Port() != "" && !isPort(u.Port()):
		return nil, invalid("url", shown, "with a port of 1 to 65535")
	case u.User.Username() != "":
		return nil, invalid("url", shown, "without a user name: a token is given as a password")
	}
	if t.socket == "" && u.Port() == "" {
		t.base.Host = net.JoinHostPort(u.Hostname(), defaultPort)
	}
	t.token.value, _ = u.User.Password()
	return t, t.parameters(u.RawQuery)
}

// parameters reads the parameters of a URL.
func (t *target) parameters(query string) error {
	params, err := storeurl.Params(query, append(storeurl.TLSParams(), tokenFileParam)...)
	if err != nil {
		return err
	}
	t.token.file = params.Get(tokenFileParam)
	t.tls, err = storeurl.TLS(params, t.base.Scheme == "https", "holdfasts")
	return err
}

const tokenFileParam = "token_file"

// mayCarry refuses a token that would be sent in the clear to another host.
func (t *target) mayCarry() error {
	if t.token.none() || t.base.Scheme == "https" || t.socket != "" || isLoopback(t.base.Hostname()) {
		return nil
	}
	return invalid("url", strconv.Quote(t.base.Redacted()), "holdfasts://: a token is not sent over plain HTTP, except to this host")
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// token is a bearer token. One in a file is read again, so that it can be replaced while the program runs.
type token struct {
	file string // empty: none

	mu    sync.Mutex
	value string
	read  time.Time
}

func (t *token) none() bool { return t.file == "" && t.value == "" }

// get returns the token. When the file cannot be read any more, the token that it had stays.
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
