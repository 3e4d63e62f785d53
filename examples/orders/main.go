// Command orders processes the orders of a shop and reserves its stock, with any number of
// instances on one PostgreSQL. No order is charged twice, and no stock is sold that does not
// exist, also when an instance is killed, or is stopped and resumes. See README.md.
//
//	go run ./examples/orders --database postgres://127.0.0.1/shop --demo
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/examples/internal/web"
)

func main() {
	os.Exit(web.Main("orders", func(ctx context.Context, args []string, out, diag io.Writer) error {
		return Run(ctx, args, nil, out, diag)
	}))
}

// Run is the command: it serves until ctx ends. authorize asks the payment provider unless --payments
// names one; see NewShop. out receives the address, diag is the log. Errors: of the command line, and of the
// stores.
func Run(ctx context.Context, args []string, authorize Authorize, out, diag io.Writer) error {
	flags := flag.NewFlagSet("orders", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:8080", "address to listen on")
	database := flags.String("database", "", "URL of the PostgreSQL database")
	url := flags.String("locks", "", "URL of the store of the locks: any that package open knows; empty: the database")
	epoch := web.Epoch(flags)
	ttl := flags.Duration("ttl", 10*time.Second, "how long the locks of an instance that died keep the others out")
	name := flags.String("name", "", "who this instance is, for people; empty: host and process")
	payments := flags.String("payments", "", "URL of the payment provider, which is sent each order; empty: every order can be charged")
	mail := flags.String("mail", "", "URL of the mail service, which is sent the confirmations; empty: they stay in the database")
	demo := flags.Bool("demo", false, "fill an empty database with three products and nine orders")
	if ok, err := web.Parse(flags, args, diag); !ok {
		return err
	}
	if *database == "" {
		return web.Bad("--database", `""`, "the URL of a PostgreSQL database")
	}
	log := slog.New(slog.NewTextHandler(diag, nil))

	store, err := OpenStore(ctx, *database, *epoch)
	if err != nil {
		return err
	}
	defer store.Close()
	if *demo {
		if err := store.Demo(ctx); err != nil {
			return err
		}
	}
	locks, end, err := web.Locks(ctx, cmp.Or(*url, *database), holdfast.Config{TTL: *ttl, Owner: *name, Logger: log})
	if err != nil {
		return err
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
	return errors.Join(err, end())
}
