//go:build unix

package launch

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// Holdfast returns nodes of our own server, each on the etcd in its process: one alone, or members
// of a cluster, which serves when it is formed with "holdfast cluster init". Their names are n1, n2
// and so on, and the data of each is in its Path("data").
func Holdfast(o Options) ([]*Server, error) {
	nodes, names, peers := make([]*Server, max(1, o.Members)), make([]string, max(1, o.Members)), make([]string, max(1, o.Members))
	for i := range nodes {
		names[i] = fmt.Sprintf("n%d", i+1)
		peer, err := FreeAddr()
		if err != nil {
			return nil, err
		}
		peers[i] = names[i] + "=http://" + peer
		if nodes[i], err = o.server("holdfast", names[i], ""); err != nil {
			return nil, err
		}
	}
	for i, s := range nodes {
		args := []string{"serve", "--listen", s.addr, "--data-dir", s.Path("data")}
		if len(nodes) > 1 {
			args = append(args, "--name", names[i], "--cluster", strings.Join(peers, ","))
		}
		s.URL, s.command.Argv = "holdfast://"+s.addr, slices.Concat(s.command.Argv, args, o.Args)
		s.command.Interrupt = syscall.SIGTERM
		// The certificates of the peers are deleted with the folder. The store is not taken from the environment of the user.
		s.command.Env = []string{"XDG_STATE_HOME=" + o.Dir, "HOLDFAST_BACKEND="}
	}
	return nodes, nil
}
