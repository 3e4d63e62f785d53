package program

import (
	"cmp"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// DefaultPort is the port of a server.
const DefaultPort = "6379"

// KeepAlive is how often a connection that is silent is probed.
const KeepAlive = time.Second

// Tune configures a client of one server for our needs. Each request, and each connection, is bounded by timeout.
func Tune(o *rueidis.ClientOption, timeout time.Duration) {
	// Sizes of what rueidis allocates for each connection. Requests and answers are small.
	const bufferSize, ringScale = 64 << 10, 8
	o.ForceSingleClient = true
	o.DisableCache = true
	o.DisableRetry = true     // the caller decides whether to retry
	o.AlwaysPipelining = true // a request is never read in the goroutine that sent it
	o.ReadBufferEachConn, o.WriteBufferEachConn, o.RingScaleEachConn = bufferSize, bufferSize, ringScale
	o.Dialer = net.Dialer{Timeout: timeout, KeepAlive: KeepAlive}
	o.ConnWriteTimeout = timeout
}

// CheckPrefix checks the prefix of all keys and channels.
func CheckPrefix(prefix string) error {
	const most = 32
	bad := func(r rune) bool {
		return ('A' > r || r > 'Z') && ('a' > r || r > 'z') && ('0' > r || r > '9') && r != '_' && r != '-'
	}
	if len(prefix) > most || strings.ContainsFunc(prefix, bad) {
		return &backend.InvalidError{Field: "prefix", Value: connect.Quote(prefix), Bound: "1 to 32 characters of a-z A-Z 0-9 _ -"}
	}
	return nil
}

// Database reads the number of a database from a part of a URL.
func Database(part, text string) (int, error) {
	const most = 1 << 16
	db, err := strconv.Atoi(text)
	if err != nil || db < 0 || db >= most {
		// A mistyped URL can have its password in the path.
		return 0, &backend.InvalidError{Field: part, Value: "(not shown)", Bound: "the number of a database"}
	}
	return db, nil
}

// ClientName reads the parameter client_name.
func ClientName(params url.Values) (string, error) {
	name := params.Get("client_name")
	if strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", connect.ParamError("client_name", name, "printable ASCII without spaces")
	}
	return name, nil
}

// SortHolders sorts holders in the order of their grants.
func SortHolders(hs []backend.Holder) {
	slices.SortFunc(hs, func(x, y backend.Holder) int {
		return cmp.Or(cmp.Compare(x.Token, y.Token), x.Since.Compare(y.Since), cmp.Compare(x.Lease, y.Lease))
	})
}
