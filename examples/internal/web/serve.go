package web

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

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
