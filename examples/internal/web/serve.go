package web

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/open"
)

// Main runs an example until SIGINT or SIGTERM, writes its error to the standard error, and returns the exit status. out of
// run receives the address, diag is the log.
func Main(name string, run func(ctx context.Context, args []string, out, diag io.Writer) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		return 1
	}
	return 0
}

// Locks opens a client of the store of the locks at that URL. The function ends both.
func Locks(ctx context.Context, url string, cfg holdfast.Config) (*holdfast.Client, func() error, error) {
	b, err := open.URL(ctx, url, open.Options{Logger: cfg.Logger})
	if err != nil {
		return nil, nil, fmt.Errorf("the store of the locks: %w", err)
	}
	locks, err := holdfast.New(b, cfg)
	if err != nil {
		return nil, nil, errors.Join(err, b.Close())
	}
	return locks, func() error {
		done, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return errors.Join(locks.Close(done), b.Close())
	}, nil
}

// StopTime is how long requests in progress have to finish when the service is told to stop.
const StopTime = 15 * time.Second

// Serve listens on the address, writes the address to out, and answers with h until ctx ends.
// Then it accepts no more connections and lets the requests in progress finish, for StopTime at
// most. Errors: of listening, and of requests that had to be cut off.
func Serve(ctx context.Context, address string, h http.Handler, out io.Writer) error {
	var config net.ListenConfig
	ln, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	server := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      RequestTime + 10*time.Second, // counted from the end of the headers
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	fmt.Fprintf(out, "listening on http://%s\n", ln.Addr())
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), StopTime)
	defer cancel()
	if err := server.Shutdown(stop); err != nil {
		return fmt.Errorf("requests were cut off: %w", errors.Join(err, server.Close()))
	}
	return nil
}

// Parse reads the command line of an example. It reports whether there is anything to do: -help
// has been answered already. Errors: what is wrong, which is written to out too.
func Parse(flags *flag.FlagSet, args []string, out io.Writer) (bool, error) {
	flags.SetOutput(out)
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("command line: %w", err)
	case flags.NArg() > 0:
		return false, fmt.Errorf("command line: %q is not a flag", flags.Arg(0))
	}
	return true, nil
}

// Bad is the error of a flag whose value is out of its bound.
func Bad(name, value, bound string) error {
	return fmt.Errorf("command line: %w", &holdfast.InvalidError{Field: name, Value: value, Bound: bound})
}

// Epoch defines the flag --epoch.
func Epoch(flags *flag.FlagSet) *uint32 {
	epoch := new(uint32)
	flags.Func("epoch", "epoch of the store of the locks: one more after each move to another store (default 0)", func(s string) error {
		n, err := strconv.ParseUint(s, 10, 32)
		*epoch = uint32(n)
		return err //nolint:wrapcheck // the flag set says which flag
	})
	return epoch
}
