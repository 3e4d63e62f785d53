// Command tables lets the guests of a restaurant reserve tables. The data to protect is a row
// of the database, so the database locks it, in the transaction that reads, decides and writes:
// package rowlock. See README.md.
//
//	go run ./examples/tables --database postgres://127.0.0.1/bar --demo
package main

import (
	"context"
	"flag"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/holdfast-io/holdfast/examples/internal/web"
)

func main() { os.Exit(web.Main("tables", Run)) }

// Run is the command: it serves until ctx ends. out receives the address, diag is the log.
// Errors: of the command line, and of the database.
func Run(ctx context.Context, args []string, out, diag io.Writer) error {
	flags := flag.NewFlagSet("tables", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:8080", "address to listen on")
	database := flags.String("database", "", "URL of the PostgreSQL database")
	stay := flags.Duration("stay", 2*time.Hour, "how long guests have a table, 1m to 24h")
	wait := flags.Duration("wait", 2*time.Second, "how long to wait for a table that somebody else is reserving, 1ms to 10s")
	demo := flags.Bool("demo", false, "fill an empty database with three tables and two guests")
	if ok, err := web.Parse(flags, args, diag); !ok {
		return err
	}
	switch {
	case *database == "":
		return web.Bad("--database", `""`, "the URL of a PostgreSQL database")
	case *stay < time.Minute || *stay > 24*time.Hour:
		return web.Bad("--stay", stay.String(), "1m to 24h")
	case *wait < time.Millisecond || *wait > 10*time.Second:
		return web.Bad("--wait", wait.String(), "1ms to 10s")
	}
	bar, err := Open(ctx, *database, *stay, *wait)
	if err != nil {
		return err
	}
	defer bar.Close()
	if *demo {
		if err := bar.Demo(ctx); err != nil {
			return err
		}
	}
	return web.Serve(ctx, *listen, NewAPI(bar, slog.New(slog.NewTextHandler(diag, nil))), out)
}
