// Redlock-services runs a small fleet on Redlock: see README.md.
//
//	go run ./examples/redlock-services
package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/examples/internal/web"
	"github.com/holdfast-io/holdfast/examples/redlock-services/internal/services"
	"github.com/holdfast-io/holdfast/observe"
	"github.com/holdfast-io/holdfast/observe/health"
)

func main() { os.Exit(web.Main("redlock-services", run)) }

func run(ctx context.Context, args []string, out, diag io.Writer) error {
	flags := flag.NewFlagSet("redlock-services", flag.ContinueOnError)
	backend := flags.String("backend", "", "redlock://host,host,host (default: three redis-server of its own)")
	data := flags.String("data", "", "file of the database, which several processes may share (default: a file of this run)")
	instances := flags.Int("instances", 3, "how many instances")
	epoch := web.Epoch(flags)
	listen := flags.String("listen", "", "serve /healthz and /metrics on this address until SIGINT or SIGTERM")
	if ok, err := web.Parse(flags, args, diag); !ok {
		return err
	}
	dir, err := os.MkdirTemp("", "redlock-services-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a folder of the system's own
	url := *backend
	if url == "" {
		nodes, err := startNodes(ctx, dir)
		if err != nil {
			return err
		}
		defer nodes.end()
		url = nodes.url()
		fmt.Fprintln(out, "three Redis servers:", url)
	}
	store, err := services.OpenStore(ctx, cmp.Or(*data, filepath.Join(dir, "data.db")), *epoch)
	if err != nil {
		return err
	}
	defer store.Close() //nolint:errcheck // what was committed stays
	reg := prometheus.NewRegistry()
	metrics, err := observe.NewPrometheus(reg, observe.Options{Backend: "redlock"})
	if err != nil {
		return err
	}
	var locks []*holdfast.Client
	var check *health.Checker
	for i := range *instances {
		b, err := redlock.Open(ctx, url, redlock.Config{})
		if err != nil {
			return err
		}
		defer b.Close() //nolint:errcheck // each at the end
		c, err := holdfast.New(metrics.Backend(b), holdfast.Config{Owner: fmt.Sprintf("instance-%d", i), Hooks: metrics.Hooks()})
		if err != nil {
			return err
		}
		defer c.Close(context.WithoutCancel(ctx)) //nolint:errcheck // each at the end
		locks = append(locks, c)
		if check == nil {
			if check, err = health.New(c, b, health.Config{}); err != nil {
				return err
			}
		}
	}
	if err := work(ctx, out, locks, store); err != nil {
		return err
	}
	report := check.Check(ctx)
	fmt.Fprintln(out, "health:", report.Status, report.Found)
	if *listen == "" {
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("/healthz", check)
	mux.Handle("/metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	return web.Serve(ctx, *listen, mux, out)
}

// work has all instances do all of the work concurrently.
func work(ctx context.Context, out io.Writer, locks []*holdfast.Client, store *services.Store) error {
	var processed, synced atomic.Int32
	src := ticks{}
	errs := make([]error, len(locks))
	var wg sync.WaitGroup
	for i, c := range locks {
		wg.Go(func() {
			files := services.Files{Locks: c, Store: store, Process: func(context.Context, string) (string, error) { processed.Add(1); return "done", nil }}
			for n := range 5 {
				_, err := files.Run(ctx, fmt.Sprintf("file-%d.csv", n))
				errs[i] = errors.Join(errs[i], err)
			}
			ids := services.IDs{Locks: c, Store: store}
			for range 5 {
				_, err := services.WithLock(ctx, c, "critical", services.Retry{Tries: 20}, func(ctx context.Context, _ *holdfast.Lock) (string, error) {
					return ids.Next(ctx, "NF", func(ctx context.Context, tx *sql.Tx, id string) error {
						_, err := tx.ExecContext(ctx, "INSERT INTO invoices VALUES (?, 'sale')", id)
						return err //nolint:wrapcheck // it is printed as it is
					})
				})
				errs[i] = errors.Join(errs[i], err)
			}
			s := services.Sync{Locks: c, Store: store, Name: "crm", Source: src}
			n, _, err := s.Run(ctx)
			synced.Add(int32(n)) //nolint:gosec // a few
			errs[i] = errors.Join(errs[i], err)
		})
	}
	wg.Wait()
	var invoices, last int
	err := store.DB().QueryRowContext(ctx, "SELECT count(DISTINCT id), (SELECT last FROM counters) FROM invoices").Scan(&invoices, &last)
	fmt.Fprintf(out, "%d instances: 5 files, processed %d times; %d invoices, the last has number %d; %d changes synchronised\n",
		len(locks), processed.Load(), invoices, last, synced.Load())
	return errors.Join(err, errors.Join(errs...))
}

// ticks is a source of forty changes.
type ticks struct{}

func (ticks) Since(_ context.Context, seq int64) ([]services.Change, error) {
	var page []services.Change
	for n := seq + 1; n <= 40 && len(page) < 10; n++ {
		page = append(page, services.Change{Seq: n, Key: fmt.Sprintf("customer-%d", n)})
	}
	return page, nil
}
