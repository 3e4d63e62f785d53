// Command holdfast-bench-peers is the command holdfast with the locks of other projects, for
// "holdfast bench --peers": they run in the same process and the same rounds as ours. It is a
// module of its own, so that programs that use Holdfast, and the command holdfast itself,
// compile none of them.
//
// A peer is one small file, with a function that returns a [bench.Contender], and a line in
// peers. It is used as its own documentation says, with its defaults, except where that says
// what to change for many waiters. A comment says so at each such place. A peer whose call gives
// up by itself is called again until it has the lock.
package main

import (
	"context"
	"os"

	"github.com/holdfast-io/holdfast/bench"
	"github.com/holdfast-io/holdfast/internal/cli"
)

func main() {
	os.Exit(cli.RunWithPeers(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr, peers)) //nolint:forbidigo // this is main
}

// peers are the contenders on an engine.
func peers(e *bench.Engine) []bench.Contender {
	switch e.Name {
	case "redis":
		return []bench.Contender{overGoRedis(), redsyncOne(), bsmRedislock(), rueidisLock(), redisLoop()}
	case "redlock":
		return []bench.Contender{redsyncMany()}
	case "redlock-hung":
		return []bench.Contender{redsyncManyHung()}
	case "etcd":
		return []bench.Contender{
			etcdConcurrency(),
			etcdLockService("etcd v3lock", func(cfg bench.Config) string { return cfg.URL }),
		}
	case "zookeeper":
		return []bench.Contender{zooKeeperLock()}
	case "consul":
		return []bench.Contender{consulLock()}
	case "postgres":
		return []bench.Contender{cirelloPglock(), advisoryLoop()}
	case "mysql":
		return []bench.Contender{getLockLoop()}
	case "kubernetes":
		return []bench.Contender{leaderElection()}
	case "holdfast":
		if e.Beside == "" {
			return nil
		}
		return []bench.Contender{etcdLockService("etcd v3lock", func(bench.Config) string { return e.Beside })}
	default:
		return nil
	}
}
