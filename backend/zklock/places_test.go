package zklock_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/adler32"
	"math"
	"os"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/zklock"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// TestPlacesRunOut: a container gives 2^30 places, and then makes room for another one. No waiter overlaps a
// holder, wherever the container's sequence stands, also at its end. While a container that has given its
// last place has a holder, a request waits or is refused, and what it tried leaves nothing behind.
func TestPlacesRunOut(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const last = 1<<30 - 1
	server := withSequences(t, map[string]int32{"held": last, "last": last - 1, "end": math.MaxInt32 - 1, "over": math.MaxInt32})
	const clients = 3
	var all [clients]*zklock.Backend
	var sessions [clients]backend.SessionID
	for i := range clients {
		all[i] = closing(t, server)
		sessions[i] = leasetest.Session(t, all[i], leasetest.Long, nil)
	}

	held := leasetest.Ask("held", sessions[0])
	held.Mode = backend.Shared
	first := leasetest.Take(t, all[0], held)
	waiter := leasetest.Ask("held", sessions[1])
	had := make(chan fence.Token, 1)
	go func() { had <- leasetest.Take(t, all[1], waiter) }()
	leasetest.Eventually(t, "the waiter watches", func() bool { return server.Count("zk_watch_count") == clients+1 }) // one for each session
	try := leasetest.Ask("held", sessions[2])
	try.Mode, try.Wait = backend.Shared, false
	if _, err := all[2].Acquire(leasetest.Within(t), try); !errors.As(err, new(*backend.HeldError)) {
		t.Errorf("a request that does not wait: %v", err)
	}
	if info, err := all[2].Inspect(leasetest.Within(t), "held"); err != nil || len(info.Holders) != 1 || len(info.Waiters) != 0 {
		t.Errorf("%+v, %v; want one holder", info, err)
	}
	select {
	case <-had:
		t.Error("granted beside the holder")
	default:
	}
	leasetest.Give(t, all[0], held)
	if token := <-had; token <= first {
		t.Errorf("token %d after %d", token, first)
	}

	for _, lock := range []string{"last", "end", "over"} {
		t.Run(lock, func(t *testing.T) {
			t.Parallel()
			const callers, rounds = 4, 5
			var wg sync.WaitGroup
			var inside atomic.Int32
			var newest atomic.Uint64
			for i := range clients * callers {
				b, id := all[i%clients], sessions[i%clients]
				wg.Go(func() {
					for range rounds {
						req := leasetest.Ask(lock, id)
						token := leasetest.Take(t, b, req)
						if n := inside.Add(1); n != 1 {
							t.Errorf("%d hold the lock", n)
						}
						if before := fence.Token(newest.Swap(uint64(token))); before >= token {
							t.Errorf("token %d after %d", token, before)
						}
						inside.Add(-1)
						leasetest.Give(t, b, req)
					}
				})
			}
			wg.Wait()
		})
	}
}

// withSequences returns a server with the containers of some locks, whose sequences stand at the numbers: the
// next entry gets that number. Only a log of transactions can say so.
func withSequences(t *testing.T, sequences map[string]int32) *testserver.ZooKeeperServer {
	t.Helper()
	server := testserver.StartZooKeeper(t, 1, "-Dznode.container.checkIntervalMs=3600000")[0] // empty containers stay
	b := closing(t, server)
	id := leasetest.Session(t, b, leasetest.Long, nil)
	for lock := range sequences {
		leasetest.Take(t, b, leasetest.Ask(lock, id))
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	hex := regexp.MustCompile(`Zxid: 0x([0-9a-f]+)`).FindStringSubmatch(server.Ask("srvr"))
	if hex == nil {
		t.Fatal("srvr reports no zxid")
	}
	zxid, err := strconv.ParseUint(hex[1], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	server.Kill()
	name := server.Path(fmt.Sprintf("data/version-2/log.%x", zxid+1))
	log := binary.BigEndian.AppendUint64([]byte("ZKLG\x00\x00\x00\x02"), 0)
	add := func(op uint32, path string, rest []byte) {
		zxid++
		txn := binary.BigEndian.AppendUint64(nil, 1)   // session
		txn = binary.BigEndian.AppendUint32(txn, 0)    // number of the request
		txn = binary.BigEndian.AppendUint64(txn, zxid) //
		txn = binary.BigEndian.AppendUint64(txn, 0)    // time
		txn = binary.BigEndian.AppendUint32(txn, op)   //
		txn = binary.BigEndian.AppendUint32(txn, uint32(len(path)))
		txn = append(append(txn, path...), rest...)
		log = binary.BigEndian.AppendUint64(log, uint64(adler32.Checksum(txn)))
		log = binary.BigEndian.AppendUint32(log, uint32(len(txn)))
		log = append(append(log, txn...), 'B')
	}
	for lock, number := range sequences {
		const opCreate, opDelete = 1, 2
		path := pathOf(t) + "/locks/" + lock + "/preset"
		// No data, no rights, not ephemeral, and what the parent's sequence is afterwards.
		add(opCreate, path, binary.BigEndian.AppendUint32(make([]byte, 9), uint32(number)))
		add(opDelete, path, nil)
	}
	if err := os.WriteFile(name, log, 0o600); err != nil {
		t.Fatal(err)
	}
	server.Start()
	return server
}
