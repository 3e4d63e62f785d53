// Command orders processes the orders of a shop and reserves its stock, with any number of
// instances on one PostgreSQL. No order is charged twice, and no stock is sold that does not
// exist, also when an instance is killed, or is stopped and resumes. See README.md.
//
//	go run ./examples/orders --database postgres://127.0.0.1/shop --demo
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/examples/internal/web"
	"github.com/holdfast-io/holdfast/open"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := Run(ctx, os.Args[1:], nil, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "orders:", err)
		os.Exit(1)
	}
}

// Run is the command: it serves until ctx ends. authorize asks the payment provider unless --payments
// names one; see NewShop. out receives the address, diag is the log. Errors: of the command line, and of the
// stores.
func Run(ctx context.Context, args []string, authorize Authorize, out, diag io.Writer) error {
	flags := flag.NewFlagSet("orders", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:8080", "address to listen on")
	database := flags.String("database", "", "URL of the PostgreSQL database")
	url := flags.String("locks", "", "URL of the store of the locks: any that package open knows; empty: the database")
	epoch := flags.Uint("epoch", 0, "epoch of the store of the locks: one more after each move to another store")
	ttl := flags.Duration("ttl", 10*time.Second, "how long the locks of an instance that died keep the others out")
	name := flags.String("name", "", "who this instance is, for people; empty: host and process")
	payments := flags.String("payments", "", "URL of the payment provider, which is sent each order; empty: every order can be charged")
	mail := flags.String("mail", "", "URL of the mail service, which is sent the confirmations; empty: they stay in the database")
	demo := flags.Bool("demo", false, "fill an empty database with three products and nine orders")
	if ok, err := web.Parse(flags, args, diag); !ok {
		return err
	}
	if *database == "" {
		return fmt.Errorf("command line: %w", &holdfast.InvalidError{Field: "--database", Value: `""`, Bound: "the URL of a PostgreSQL database"})
	}
	if *epoch > math.MaxUint32 {
		return fmt.Errorf("command line: %w", &holdfast.InvalidError{Field: "--epoch", Value: strconv.FormatUint(uint64(*epoch), 10), Bound: "0 to 4294967295"})
	}
	if *url == "" {
		*url = *database
	}
	log := slog.New(slog.NewTextHandler(diag, nil))

	store, err := OpenStore(ctx, *database, uint32(*epoch))
	if err != nil {
		return err
	}
	defer store.Close()
	if *demo {
		if err := store.Demo(ctx); err != nil {
			return err
		}
	}
	b, err := open.URL(ctx, *url, open.Options{Logger: log})
	if err != nil {
		return fmt.Errorf("--locks: %w", err)
	}
	locks, err := holdfast.New(b, holdfast.Config{TTL: *ttl, Owner: *name, Logger: log})
	if err != nil {
		return errors.Join(err, b.Close())
	}
	if *payments != "" {
		authorize = Payments(*payments)
	}
	var mailing sync.WaitGroup
	defer mailing.Wait()
	mailCtx, stopMail := context.WithCancel(ctx)
	defer stopMail() // also if the service does not listen
	if *mail != "" {
		mailing.Go(func() { Mail(mailCtx, store, *mail, log) })
	}
	err = web.Serve(ctx, *listen, NewAPI(NewShop(store, locks, authorize, log), log), out)
	done, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(err, locks.Close(done), b.Close())
}
