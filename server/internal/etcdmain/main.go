// Etcdmain is an etcd for tests: the server of the module, with the flags of etcd's own
// command, as a process of its own, which can be killed, stopped and started again.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
