// Command reservations lets the brokers of an estate agency reserve properties. A broker that
// has reserved a property keeps the others from it, until it is released, or expires after two
// hours without a request from its broker. See README.md.
//
//	go run ./examples/reservations --backend redis://127.0.0.1:6379
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/examples/internal/web"
)

func main() { os.Exit(web.Main("reservations", Run)) }

// Run is the command: it serves until ctx ends. out receives the address, diag is the log.
//
// Errors: of the command line; *holdfast.InvalidError or holdfast.ErrUnsupported where the
// backend cannot keep a reservation for as long as --for says; of the backend's URL.
func Run(ctx context.Context, args []string, out, diag io.Writer) error {
	flags := flag.NewFlagSet("reservations", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:8080", "address to listen on")
	url := flags.String("backend", "sqlite://"+filepath.Join(os.TempDir(), "holdfast-reservations.db"), "URL of the store: any that package open knows")
	ttl := flags.Duration("for", 2*time.Hour, "how long a reservation stands without being renewed")
	if ok, err := web.Parse(flags, args, diag); !ok {
		return err
	}
	log := slog.New(slog.NewTextHandler(diag, nil))

	locks, end, err := web.Locks(ctx, *url, holdfast.Config{Logger: log})
	if err != nil {
		return err
	}
	err = serve(ctx, *listen, locks, *ttl, log, out)
	return errors.Join(err, end()) // the reservations stay: they belong to no process
}

func serve(ctx context.Context, listen string, locks *holdfast.Client, ttl time.Duration, log *slog.Logger, out io.Writer) error {
	book, err := NewBook(locks, ttl)
	if err != nil {
		return fmt.Errorf("--for %s on this backend: %w", ttl, err)
	}
	if !locks.Capabilities().Durable {
		log.LogAttrs(ctx, slog.LevelWarn, "this backend forgets every reservation when it is restarted", slog.String("backend", locks.Capabilities().Name))
	}
	return web.Serve(ctx, listen, NewAPI(book, log), out)
}
