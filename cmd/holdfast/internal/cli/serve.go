package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/server"
)

type serveOptions struct {
	listen     string
	dataDir    string
	drainDelay time.Duration
	maxTTL     time.Duration
	logFormat  string
	logLevel   string
	access     accessOptions
}

const (
	longestTTL   = 24 * time.Hour
	longestDrain = time.Hour
)

func (a *app) serveCommand() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve locks over HTTP",
		Long: `Serve locks over HTTP: for curl, for programs in any language, and for the backend
holdfast://. The locks are in a file in --data-dir, unless --backend (not HOLDFAST_BACKEND)
names a store: one with leases that outlive their connection. Several servers may use one
store. A restart keeps leases and tokens, except those of memory://.

SIGTERM or Ctrl-C stops the server: /readyz returns 503 for --drain-delay, waiting requests
get an answer, and leases stay. A second signal ends it at once. SIGHUP does nothing,
unless a terminal that is closed sends it: the policy and the certificates are read again
when they change.

--policy says who may do what: principals are identified by client certificates, tokens,
or, on a Unix socket, by their user. Without it every client may do everything, and the
server refuses to listen beyond this host without --anonymous, and without --tls-cert or
--insecure with --host.

Each flag is also a variable, HOLDFAST_SERVE_DATA_DIR for --data-dir. A flag comes before
a variable.

Standard error has the log, and a JSON line for the audit about each break and refusal,
which -q and --log-level do not silence.

The API is described at /openapi.json, the metrics are at /metrics, and / is a page
that shows the locks as they change.`,
		Example: `  holdfast serve
  holdfast serve --backend etcd://a,b,c
  holdfast serve --listen :7420 --policy policy.yaml --tls-cert cert.pem --tls-key key.pem --tls-client-ca ca.pem

  curl -X POST localhost:7420/v1/locks/order:123 -d '{"ttl":"30s","wait":"10s"}'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := readVariables(cmd.Flags()); err != nil {
				return err
			}
			if err := a.setLog(o); err != nil {
				return err
			}
			return a.serve(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", "127.0.0.1:7420", "address to listen on: HOST:PORT, or unix: and the path of a socket")
	f.StringVar(&o.dataDir, "data-dir", "", "folder of the locks, without --backend (default: holdfast/serve in the user's state folder)")
	cmd.Annotations = map[string]string{ownSignals: "a signal drains the server"}
	f.StringVar(&o.logFormat, "log-format", "text", "format of the log: text or json")
	f.StringVar(&o.logLevel, "log-level", "info", "least level that is logged: debug, info, warn or error (-v: debug)")
	f.DurationVar(&o.drainDelay, "drain-delay", 0, "how long to keep serving after SIGTERM while /readyz returns 503, so that a load balancer stops sending clients")
	f.DurationVar(&o.maxTTL, "max-ttl", longestTTL, "the longest TTL of a lease: after a loss of data, Redis grants nothing for the longest TTL in use")
	o.access.add(f)
	return cmd
}

// setLog makes the log of serve what its flags say.
func (a *app) setLog(o serveOptions) error {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	level, ok := levels[o.logLevel]
	if !ok {
		return usageError("log-level", "%q: must be debug, info, warn or error", o.logLevel)
	}
	if o.logFormat != "text" && o.logFormat != "json" {
		return usageError("log-format", "%q: must be text or json", o.logFormat)
	}
	a.logLevel, a.logJSON = level, o.logFormat == "json"
	return nil
}

func (a *app) serve(ctx context.Context, o serveOptions) error {
	ends := minded(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if !a.isTerminal(a.stderr) { // SIGHUP does not say that a terminal was closed, but asks to read the files again
		signal.Ignore(syscall.SIGHUP)
		ends = minded(syscall.SIGINT, syscall.SIGTERM)
	}
	ctx, stop := signal.NotifyContext(ctx, ends...)
	defer stop()
	surviveUnread()
	if err := o.check(); err != nil { // before anything is created on the disk
		return err
	}
	cfg := server.Config{Version: version(), Logger: a.logger(), DrainDelay: o.drainDelay, Limits: server.Limits{MaxTTL: o.maxTTL}}
	cfg.Audit = slog.New(slog.NewJSONHandler(a.stderr, nil)) // not the log: -q and --log-level would silence it
	endAccess, err := o.access.apply(&cfg, a.logger())
	if err != nil {
		return err
	}
	defer endAccess()
	b, folder, err := a.store(ctx, o.dataDir)
	if err != nil {
		return err
	}
	srv, err := server.New(b, cfg)
	if err != nil {
		return errors.Join(err, b.Close())
	}
	ln, err := listenOn(ctx, o.listen, o.access.policy != "")
	if err != nil {
		return errors.Join(&statusError{status: exitError1, err: fmt.Errorf("listen: %w", err)}, b.Close())
	}
	a.tellServing(b.Capabilities().Name, folder, shownAddress(ln.Addr(), cfg.TLS != nil))
	a.notify("READY=1") // from here on connections wait in the listener
	var beside sync.WaitGroup
	beside.Go(func() { a.examine(ctx, b) })
	beside.Go(func() {
		<-ctx.Done()
		stop()
		a.warn("stopping; a second signal ends the server at once")
		a.notify("STOPPING=1")
	})
	err = srv.Serve(ctx, ln)
	stop()
	beside.Wait()
	if err == nil {
		a.warn("stopped")
	}
	return errors.Join(err, b.Close())
}

// examine warns of what "holdfast doctor" finds in the store.
func (a *app) examine(ctx context.Context, b backend.Backend) {
	e, ok := b.(backend.Examiner)
	if !ok {
		return
	}
	found, err := e.Examine(ctx)
	var weak []string
	for _, f := range found {
		if !f.Usual {
			weak = append(weak, f.Text)
		}
	}
	if err == nil && len(weak) > 0 {
		a.logger().WarnContext(ctx, "the store weakens what a lock promises; \"holdfast doctor\" with its URL examines it", slog.Any("found", weak))
	}
}

// notify reports a state to the service manager that started this process with NOTIFY_SOCKET, as systemd does
// with Type=notify. A failure is a warning: systemd ends a service that does not become ready.
func (a *app) notify(state string) {
	if err := sdNotify(state); err != nil {
		a.warn("the service manager was not told %s: %v", state, err)
	}
}

// tellServing prints where the server is, and where its locks are.
func (a *app) tellServing(store, folder, address string) {
	if folder != "" {
		a.warn("keeping locks in %s", folder)
	}
	a.warn("serving %s on %s", store, address)
	if !strings.HasPrefix(address, unixPrefix) {
		a.warn("the page is %s/", address)
	}
}

// check refuses values out of bounds, and an address on which the server cannot, or must not, listen.
func (o *serveOptions) check() error {
	switch {
	case o.drainDelay < 0 || o.drainDelay > longestDrain:
		return usageError("drain-delay", "%s: must be 0s to %s", o.drainDelay, longestDrain)
	case o.maxTTL < time.Second || o.maxTTL > longestTTL:
		return usageError("max-ttl", "%s: must be 1s to %s", o.maxTTL, longestTTL)
	}
	if path, isUnix := strings.CutPrefix(o.listen, unixPrefix); isUnix {
		if path == "" {
			return usageError("listen", "%q: must have the path of a socket", o.listen)
		}
		return o.access.check(false)
	}
	host, port, err := net.SplitHostPort(o.listen)
	if err != nil {
		return usageError("listen", "%q: must be HOST:PORT, or unix: and a path", o.listen)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return usageError("listen", "%q: the port must be 0 to 65535", o.listen)
	}
	return o.access.check(!onLoopback(host))
}

// onLoopback reports whether only this host can reach a listener on host. Of the names only
// "localhost" counts: any other may be that of an address beyond the loopback.
func onLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// shownAddress returns an address as clients name it.
func shownAddress(a net.Addr, secure bool) string {
	switch {
	case a.Network() == "unix":
		return unixPrefix + a.String()
	case secure:
		return "https://" + a.String()
	}
	return "http://" + a.String()
}
