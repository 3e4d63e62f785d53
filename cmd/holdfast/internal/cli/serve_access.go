package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/reload"
	"github.com/holdfast-io/holdfast/server"
	"github.com/holdfast-io/holdfast/server/access"
)

// accessOptions are the flags of serve that say who may connect, and what they may do.
type accessOptions struct {
	anonymous, insecure bool
	policy              string
	cert, key, clientCA string
	hosts               []string
}

func (o *accessOptions) add(f *pflag.FlagSet) {
	f.StringVar(&o.policy, "policy", "", "file of the principals and of what each may do (YAML, read again when it changes)")
	f.StringVar(&o.cert, "tls-cert", "", "certificate of the server: serve HTTPS (PEM file, read again when it changes)")
	f.StringVar(&o.key, "tls-key", "", "key of --tls-cert (PEM file)")
	f.StringVar(&o.clientCA, "tls-client-ca", "", "certificate authority of client certificates, which identify principals (PEM file)")
	f.StringSliceVar(&o.hosts, "host", nil, "host names that clients may use for this server, *.DOMAIN for each one label below it (default: with --tls-cert those in the certificate)")
	f.BoolVar(&o.insecure, "insecure", false, "listen beyond this host without TLS: tokens and lease IDs are sent in the clear")
	f.BoolVar(&o.anonymous, "anonymous", false, "listen beyond this host without authentication: every client that connects may do everything")
}

// check refuses flags that do not go together. beyond: the server listens beyond this host.
func (o *accessOptions) check(beyond bool) error {
	switch {
	case (o.cert == "") != (o.key == ""):
		return usageError("tls-cert, tls-key", "must be given both or none")
	case o.clientCA != "" && o.cert == "":
		return usageError("tls-client-ca", "needs --tls-cert and --tls-key")
	case o.policy != "" && o.anonymous:
		return usageError("anonymous", "cannot be combined with --policy, which identifies every client")
	case slices.ContainsFunc(o.hosts, func(h string) bool { h = strings.TrimPrefix(h, "*."); return h == "" || strings.Contains(h, "*") }):
		return usageError("host", "%q: each must be a host name, with a wildcard only as its first label", o.hosts)
	case beyond && o.policy == "" && !o.anonymous:
		return usageError("listen", "must be on this host's loopback; add --policy, --tls-cert and --tls-key to identify clients, or --anonymous, --insecure and --host to serve every client without authentication and TLS")
	case beyond && o.cert == "" && !o.insecure:
		return usageError("tls-cert", "must be given with --tls-key beyond this host, or --insecure: tokens and lease IDs would be sent in the clear")
	case beyond && o.cert == "" && len(o.hosts) == 0:
		return usageError("host", "must be given beyond this host without TLS: the names that clients use for this server, so that a page of another site cannot reach it under a name of its own")
	}
	return nil
}

// apply adds the policy, the certificates and the hosts to the configuration. It returns the function that ends
// the reading of the files.
func (o *accessOptions) apply(cfg *server.Config, log *slog.Logger) (func(), error) {
	cfg.Anonymous, cfg.Hosts = o.anonymous, o.hosts
	end := func() {}
	if o.policy != "" {
		file, err := access.Open(o.policy, access.Options{Logger: log, Verify: newIssuers(issuerPause).verify})
		if err != nil {
			return nil, configError("policy", err)
		}
		cfg.Identify, cfg.Authorize, cfg.Quota, cfg.Stale, end = file.Identify, file.Authorize, file.Quota, file.Stale, file.Close
	}
	if o.cert == "" {
		return end, nil
	}
	certs, err := o.openCertificates(log)
	if err != nil {
		end()
		return nil, err
	}
	cfg.TLS, cfg.CertificateExpires = certs.config(), certs.expires
	policyIsStale := cfg.Stale
	cfg.Stale = func() bool { return certs.stale.Load() || policyIsStale != nil && policyIsStale() }
	if len(cfg.Hosts) == 0 {
		cfg.Hosts = certs.first
	}
	if len(cfg.Hosts) == 0 { // the server would accept every name
		certs.close()
		end()
		return nil, usageError("host", "must be given, because the certificate %q names no host", o.cert)
	}
	endPolicy := end
	return func() { certs.close(); endPolicy() }, nil
}

// certificates are the files of TLS, which are read again when they change. Files that cannot be used
// change nothing. Connections that exist keep what they began with.
type certificates struct {
	options *accessOptions
	current atomic.Pointer[tls.Config]
	stale   atomic.Bool
	first   []string // the hosts of the first certificate, which the server knows
	close   func()
}

func (o *accessOptions) openCertificates(log *slog.Logger) (*certificates, error) {
	paths := []string{o.cert, o.key}
	if o.clientCA != "" {
		paths = append(paths, o.clientCA)
	}
	c := &certificates{options: o}
	var err error
	c.close, err = reload.Keep(time.Second, c.read, func(err error) {
		c.stale.Store(err != nil)
		if err != nil {
			log.LogAttrs(context.Background(), slog.LevelError, "the certificates cannot be used, and were not changed", slog.String("error", err.Error()))
			return
		}
		log.LogAttrs(context.Background(), slog.LevelInfo, "the certificates were changed")
		if now := c.hosts(); len(o.hosts) == 0 && !slices.Equal(now, c.first) {
			log.LogAttrs(context.Background(), slog.LevelWarn, "the certificate names other hosts than before: the server has to be restarted to know them",
				slog.Any("before", c.first), slog.Any("now", now))
		}
	}, paths...)
	return c, err
}

func (c *certificates) read() error {
	o := c.options
	pair, err := tls.LoadX509KeyPair(o.cert, o.key)
	if err != nil {
		return usageError("tls-cert", "%q: must be a readable certificate in PEM that fits --tls-key: %v", o.cert, err)
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}
	if o.clientCA != "" {
		if conf.ClientCAs, err = connect.Roots(o.clientCA); err != nil {
			return usageError("tls-client-ca", "%q: must be a readable certificate in PEM", o.clientCA)
		}
		conf.ClientAuth = tls.VerifyClientCertIfGiven // who has none may have a token
	}
	if old := c.current.Swap(conf); old == nil {
		c.first = c.hosts()
	}
	return nil
}

// config returns the configuration of the server.
func (c *certificates) config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current.Load(), nil },
	}
}

func (c *certificates) leaf() *x509.Certificate { return c.current.Load().Certificates[0].Leaf }

func (c *certificates) expires() time.Time { return c.leaf().NotAfter }

// hosts returns the names that the server's certificate is for, wildcards too.
func (c *certificates) hosts() []string {
	leaf := c.leaf()
	hosts := slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	return hosts
}

// unixPrefix begins a listening address that is the path of a Unix socket.
const unixPrefix = "unix:"

// listenOn listens on HOST:PORT, or on the Unix socket after "unix:". A socket that a server left
// behind is replaced. With a policy, all users of the host can connect, and are identified.
func listenOn(ctx context.Context, address string, everybody bool) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(address, unixPrefix)
	if !isUnix {
		return new(net.ListenConfig).Listen(ctx, "tcp", address)
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s: %w and is no socket", path, fs.ErrExist)
	default:
		if conn, err := new(net.Dialer).DialContext(ctx, "unix", path); err == nil {
			return nil, errors.Join(fmt.Errorf("%s: another server listens there", path), conn.Close()) //nolint:err113 // for people
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	mode := fs.FileMode(0o600)
	if everybody {
		mode = 0o666
	}
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return ln, nil
}
