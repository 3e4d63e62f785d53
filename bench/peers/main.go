// Command holdfast-bench-peers is "holdfast bench" with other people's locks beside ours,
// in the same process and the same rounds. It is a module of its own: programs that use
// Holdfast, and the command holdfast, compile none of them.
//
// A peer is one small file: a function that gives a [bench.Contender], and a line in
// peers. It is used as its own documentation says, with its defaults, except where that
// says what to change for many waiters; what was changed is told where it is done. A peer
// whose call gives up by itself is called again until it has the lock.
package main

import (
	"context"
	"os"

	"github.com/holdfast-io/holdfast/bench"
	"github.com/holdfast-io/holdfast/internal/cli"
)

func main() {
	os.Exit(cli.Bench(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr, peers)) //nolint:forbidigo // this is main
}

// peers are the contenders on an engine.
func peers(engine string) []bench.Contender {
	switch engine {
	case "redis":
		return []bench.Contender{redsyncOne(), bsmRedislock(), rueidisLock(), redisLoop()}
	default:
		return nil
	}
}
