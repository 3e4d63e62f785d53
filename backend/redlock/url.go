package redlock

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/backend"
)

const (
	schemePlain = "redlock"
	schemeTLS   = "redlocks"
	defaultPort = "6379"
	maxDatabase = 1 << 16
)

// Sizes of what rueidis allocates for each connection. Requests and answers are small.
const (
	bufferSize = 64 << 10
	ringScale  = 8
)

// target is what a URL names.
type target struct {
	cfg        Config
	options    []rueidis.ClientOption
	user, pass string
	db         int
	client     string
	tls        *tls.Config
}

// parseURL parses a URL. Its errors are *backend.InvalidError and contain neither the
// password nor any other part of the URL except names of parameters and their values.
func parseURL(raw string, cfg Config) (*target, error) {
	if strings.ContainsFunc(raw, unicode.IsControl) {
		return nil, badURL("without control characters")
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || scheme != schemePlain && scheme != schemeTLS {
		return nil, badURL("redlock://host1,host2,host3 or redlocks://host1,host2,host3")
	}
	if strings.ContainsRune(rest, '#') {
		return nil, badURL("without a fragment")
	}
	t := &target{cfg: cfg}
	if scheme == schemeTLS {
		t.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	rest, text, _ := strings.Cut(rest, "?")
	query, err := url.ParseQuery(text)
	if err != nil {
		return nil, badURL("with well-formed parameters")
	}
	if err := t.parameters(query); err != nil {
		return nil, err
	}
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		if err := t.credentials(rest[:i]); err != nil {
			return nil, err
		}
		rest = rest[i+1:]
	}
	hosts, db, _ := strings.Cut(rest, "/")
	if db != "" {
		if t.db, err = strconv.Atoi(db); err != nil || t.db < 0 || t.db >= maxDatabase {
			// A mistyped URL can have its password in the path.
			return nil, &backend.InvalidError{Field: "path", Value: "(not shown)", Bound: "the number of a database"}
		}
	}
	if t.cfg, err = t.cfg.withDefaults(); err != nil {
		return nil, err
	}
	return t, t.hosts(strings.Split(hosts, ","))
}

func (t *target) credentials(text string) error {
	user, pass, _ := strings.Cut(text, ":")
	var err, err2 error
	t.user, err = url.PathUnescape(user)
	t.pass, err2 = url.PathUnescape(pass)
	if err != nil || err2 != nil {
		return badURL("with user and password percent-encoded")
	}
	return nil
}

// hosts configures a client for each node.
func (t *target) hosts(hosts []string) error {
	seen := make(map[string]bool)
	for _, host := range hosts {
		addr, ok := backend.Endpoint(host, defaultPort)
		if !ok {
			return badURL("host or host:port, separated by commas")
		}
		if seen[addr] {
			return &backend.InvalidError{Field: "nodes", Value: shortQuote(addr), Bound: "given once each"}
		}
		seen[addr] = true
		t.options = append(t.options, t.option(addr))
	}
	if n := len(hosts); n < MinNodes || n > MaxNodes || n%2 == 0 {
		return &backend.InvalidError{Field: "nodes", Value: strconv.Itoa(n), Bound: "an odd number, 3 to 15"}
	}
	return nil
}

// option configures a client for the needs of redlock.
func (t *target) option(addr string) rueidis.ClientOption {
	o := rueidis.ClientOption{
		InitAddress: []string{addr}, Username: t.user, Password: t.pass, SelectDB: t.db, ClientName: t.client,
		ForceSingleClient:  true, // each node is on its own
		DisableCache:       true, // nothing is cached
		DisableRetry:       true, // the caller decides whether to retry
		AlwaysPipelining:   true, // a request is never read in the goroutine that sent it
		PipelineMultiplex:  -1,   // one connection keeps the order
		ReadBufferEachConn: bufferSize, WriteBufferEachConn: bufferSize, RingScaleEachConn: ringScale,
		Dialer:           net.Dialer{Timeout: t.cfg.RequestTimeout, KeepAlive: time.Second},
		ConnWriteTimeout: t.cfg.RequestTimeout,
	}
	if t.tls != nil {
		o.TLSConfig = t.tls.Clone()
		if host, _, err := net.SplitHostPort(addr); err == nil && o.TLSConfig.ServerName == "" {
			o.TLSConfig.ServerName = host
		}
	}
	return o
}

// parameters reads the query. An unknown parameter is refused: a misspelled setting must not
// be silently ignored.
func (t *target) parameters(query url.Values) error {
	known := []string{"ca", "cert", "client_name", "key", "max_ttl", "prefix", "quarantine", "server_name", "timeout"}
	for name, values := range query {
		if !slices.Contains(known, name) {
			return &backend.InvalidError{Field: "parameter", Value: shownName(name), Bound: "one of " + strings.Join(known, ", ")}
		}
		if len(values) != 1 || values[0] == "" {
			return &backend.InvalidError{Field: name, Value: strconv.Itoa(len(values)) + " values", Bound: "given once, and not empty"}
		}
	}
	for name, d := range map[string]*time.Duration{"timeout": &t.cfg.RequestTimeout, "max_ttl": &t.cfg.MaxTTL} {
		v := query.Get(name)
		if v == "" {
			continue
		}
		var err error
		if *d, err = time.ParseDuration(v); err != nil || *d <= 0 {
			return &backend.InvalidError{Field: name, Value: shortQuote(v), Bound: `a duration, like "30s"`}
		}
	}
	switch v := query.Get("quarantine"); v {
	case "", "on":
		t.cfg.NoQuarantine = t.cfg.NoQuarantine && v == ""
	case "off":
		t.cfg.NoQuarantine = true
	default:
		return &backend.InvalidError{Field: "quarantine", Value: shortQuote(v), Bound: `"on" or "off"`}
	}
	if v := query.Get("prefix"); v != "" {
		t.cfg.Prefix = v
	}
	t.client = query.Get("client_name")
	if strings.ContainsFunc(t.client, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return &backend.InvalidError{Field: "client_name", Value: shortQuote(t.client), Bound: "printable ASCII without spaces"}
	}
	return t.secure(query)
}

// secure reads the parameters of TLS.
func (t *target) secure(query url.Values) error {
	for _, name := range []string{"ca", "cert", "key", "server_name"} {
		if query.Has(name) && t.tls == nil {
			return &backend.InvalidError{Field: name, Value: "given", Bound: "used with redlocks:// only"}
		}
	}
	if v := query.Get("server_name"); v != "" {
		t.tls.ServerName = v
	}
	if v := query.Get("ca"); v != "" {
		pem, err := os.ReadFile(v) //nolint:gosec // the caller names the file
		pool := x509.NewCertPool()
		if err != nil || !pool.AppendCertsFromPEM(pem) {
			return &backend.InvalidError{Field: "ca", Value: shortQuote(v), Bound: "a readable file of PEM certificates"}
		}
		t.tls.RootCAs = pool
	}
	if query.Has("cert") != query.Has("key") {
		return &backend.InvalidError{Field: "cert", Value: "given alone", Bound: "given together with key"}
	}
	if v := query.Get("cert"); v != "" {
		pair, err := tls.LoadX509KeyPair(v, query.Get("key"))
		if err != nil {
			return &backend.InvalidError{Field: "cert", Value: shortQuote(v), Bound: "a readable PEM certificate that fits the key"}
		}
		t.tls.Certificates = []tls.Certificate{pair}
	}
	return nil
}

// shownName returns the name of a parameter, unless it may be something else: a mistyped URL
// can have its password there.
func shownName(name string) string {
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz_") != "" {
		return "(not shown)"
	}
	return shortQuote(name)
}

// shortQuote quotes a caller's input, shortened.
func shortQuote(s string) string {
	const most = 64
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strconv.QuoteToGraphic(s)
}

func badURL(bound string) error {
	return &backend.InvalidError{Field: "url", Value: "(not shown)", Bound: bound}
}
