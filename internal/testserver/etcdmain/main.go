// Etcdmain is an etcd for tests: the server that the module brings, as a process of
// its own, which can be killed, stopped and started again.
package main

import (
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	if err := run(os.Args[1:], os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "etcdmain:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("etcdmain", flag.ContinueOnError)
	flags.SetOutput(out)
	name := flags.String("name", "m0", "name of the member")
	dir := flags.String("dir", "", "data folder")
	client := flags.String("client", "", "URL for clients")
	peer := flags.String("peer", "", "URL for peers")
	cluster := flags.String("cluster", "", "name=URL of all members, separated by commas")
	tick := flags.Uint("tick", 50, "heartbeat in milliseconds; an election takes ten")
	fsync := flags.Bool("fsync", true, "write to the disk before answering")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("arguments: %w", err)
	}
	cu, err := url.Parse(*client)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	pu, err := url.Parse(*peer)
	if err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = *name, *dir
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*cu}, []url.URL{*cu}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*pu}, []url.URL{*pu}
	cfg.InitialCluster = *cluster
	cfg.TickMs, cfg.ElectionMs = *tick, *tick*10
	cfg.UnsafeNoFsync = !*fsync
	cfg.LogLevel, cfg.LogOutputs = "error", []string{"stderr"}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	defer e.Close()
	select {
	case <-stop:
		return nil
	case err := <-e.Err():
		return fmt.Errorf("serve: %w", err)
	}
}
