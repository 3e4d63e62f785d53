// Package connect has what lies between the URL of a store and its open connections, and is the same for all
// stores: parameters and TLS files of the URL, the connections of one client, which Close ends, and what the
// errors of a client library mean. No error about a URL contains a part that may be a password.
package connect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/holdfast-io/holdfast/backend"
)

// Hidden stands for a part of a URL that may be a password.
const Hidden = "…"

// Context returns the error for a constructor that was called without a context, or with one that has ended.
func Context(ctx context.Context) error {
	if ctx == nil {
		return &backend.InvalidError{Field: "ctx", Value: "nil", Bound: "a context"}
	}
	return context.Cause(ctx)
}

// URLError returns the error for a URL. value is the part that is wrong, or Hidden.
func URLError(value, bound string) error {
	return &backend.InvalidError{Field: "url", Value: Quote(value), Bound: bound}
}

// ParamError returns the error for the value of a parameter.
func ParamError(name, value, bound string) error {
	return &backend.InvalidError{Field: name, Value: Quote(value), Bound: bound}
}

// Quote quotes what a caller gave, but at most a line of it.
func Quote(s string) string {
	const most = 64
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strconv.QuoteToGraphic(s)
}

// Parts are the parts of a URL. Package net/url accepts one host only.
type Parts struct {
	Scheme string
	User   string // what is before the @
	HasAt  bool
	Hosts  string
	Path   string // without the slash
	Query  string
}

// Split splits a URL that has one of the schemes. like is what such a URL looks like.
func Split(raw, like string, schemes ...string) (Parts, error) {
	if strings.ContainsFunc(raw, unicode.IsControl) {
		return Parts{}, URLError(Hidden, "without control characters")
	}
	scheme, rest, _ := strings.Cut(raw, "://")
	if !slices.Contains(schemes, scheme) {
		return Parts{}, URLError(Hidden, like)
	}
	if strings.ContainsRune(rest, '#') {
		return Parts{}, URLError("#", "without a fragment")
	}
	p := Parts{Scheme: scheme}
	rest, p.Query, _ = strings.Cut(rest, "?")
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		p.User, p.HasAt, rest = rest[:i], true, rest[i+1:]
	}
	p.Hosts, p.Path, _ = strings.Cut(rest, "/")
	return p, nil
}

// IsPath reports whether a path consists of segments that stores of keys accept as they are, with dots,
// but not "." and "..".
func IsPath(path string) bool {
	for segment := range strings.SplitSeq(path, "/") {
		plain := strings.ReplaceAll(segment, ".", "")
		if segment == "" || segment == "." || segment == ".." || backend.EscapeSegment(plain) != plain {
			return false
		}
	}
	return true
}

// Params parses a query. Each parameter is one of those that are known, and is given once. An unknown
// one is refused: a setting whose name is misspelled must not be ignored silently.
func Params(query string, known ...string) (url.Values, error) {
	params, err := url.ParseQuery(query)
	if err != nil {
		return nil, URLError("?"+Hidden, "with parameters as name=value, percent-encoded")
	}
	for name, values := range params {
		if !slices.Contains(known, name) {
			return nil, URLError(shown(name), "one of the parameters "+strings.Join(known, ", "))
		}
		if len(values) != 1 || values[0] == "" {
			return nil, URLError(name, "with each parameter once, and not empty")
		}
	}
	return params, nil
}

// shown returns the name of an unknown parameter, unless it may be something else: a mistyped URL can
// have its password there.
func shown(name string) string {
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz_") != "" {
		return Hidden
	}
	return name
}

// Duration reads a parameter that is a duration above 0, if it is given.
func Duration(params url.Values, name string, d *time.Duration) error {
	if !params.Has(name) {
		return nil
	}
	v, err := time.ParseDuration(params.Get(name))
	if err != nil || v <= 0 {
		return ParamError(name, params.Get(name), `a duration above 0, as "5s"`)
	}
	*d = v
	return nil
}

// Loopback reports whether a host of a URL is this machine: what is sent there crosses no network. A socket
// in the file system is, too.
func Loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || host == "localhost" || strings.HasPrefix(host, "/") || err == nil && ip.Unmap().IsLoopback()
}

// User decodes "user:password", and returns the two.
func User(text string) (string, string, error) {
	user, password, _ := strings.Cut(text, ":")
	user, errUser := url.PathUnescape(user)
	password, errPassword := url.PathUnescape(password)
	if errUser != nil || errPassword != nil {
		return "", "", URLError("user", "user:password, percent-encoded")
	}
	return user, password, nil
}

// Roots reads the file that the parameter ca names.
func Roots(ca string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(ca) //nolint:gosec // the author of the URL names the file
	roots := x509.NewCertPool()
	if err != nil || !roots.AppendCertsFromPEM(pem) {
		return nil, ParamError("ca", ca, "a readable file with certificates in PEM")
	}
	return roots, nil
}

// TLSParams are the parameters that TLS reads: files in PEM, and the name that the server's certificate
// has to be for.
func TLSParams() []string { return []string{"ca", "cert", "key", "server_name"} }

// TLS returns the configuration that the parameters of a URL ask for, or nil if its scheme is not one
// for TLS. scheme is the one that is, for the error. The files of cert and key are read again for each
// connection.
func TLS(params url.Values, on bool, scheme string) (*tls.Config, error) {
	if !on {
		for _, name := range TLSParams() {
			if params.Has(name) {
				return nil, URLError(name, "used with "+scheme+":// only")
			}
		}
		return nil, nil //nolint:nilnil // no TLS, which is right
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: params.Get("server_name")}
	if ca := params.Get("ca"); ca != "" {
		var err error
		if conf.RootCAs, err = Roots(ca); err != nil {
			return nil, err
		}
	}
	if params.Has("cert") != params.Has("key") {
		return nil, URLError("cert, key", "given both or none")
	}
	if cert := params.Get("cert"); cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, params.Get("key"))
		if err != nil {
			return nil, ParamError("cert", cert, "a readable certificate in PEM that fits the key")
		}
		conf.GetClientCertificate = current(cert, params.Get("key"), pair)
	}
	return conf, nil
}

// current returns the certificate of a client as its files are now: it is replaced while the client
// runs. While the files cannot be used, because only one of them was replaced so far, the former
// certificate stays.
func current(cert, key string, pair tls.Certificate) func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	var mu sync.Mutex
	return func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		mu.Lock()
		defer mu.Unlock()
		if now, err := tls.LoadX509KeyPair(cert, key); err == nil {
			pair = now
		}
		found := pair
		return &found, nil
	}
}
