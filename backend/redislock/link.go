package redislock

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
)

// Over returns a Backend on connections of another client library: package goredis calls it. Errors are those of New.
func Over(ctx context.Context, library program.Library, cfg Config) (*Backend, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	n := &nodes{
		known: library.Nodes,
		connect: func(ctx context.Context, addr string) (program.Conn, error) {
			return library.Dial(ctx, addr, cfg.RequestTimeout)
		},
	}
	if library.Nodes != nil {
		return newBackend(ctx, n.connector(cfg), nil, true, cfg)
	}
	connect := func(ctx context.Context) (program.Conn, error) { return n.connect(ctx, "") }
	return newBackend(ctx, connect, library.Lane, library.Lane == nil, cfg)
}

// markerKey is the key whose server has all the data.
func markerKey(cfg Config) string { return "{" + cfg.Prefix + "0}:m" }

// connector connects to the server that has the data.
type connector func(ctx context.Context) (program.Conn, error)

// link is the transport to one server.
type link struct {
	conn     program.Conn
	replicas *replication   // nil: no replicas are waited for
	lanes    *program.Lanes // nil: all requests share the connections of conn
}

// newLink connects. The link has lanes if they can be opened, unless it sends several commands at a time.
func newLink(ctx context.Context, connect connector, lane program.OpenLane, cfg Config) (*link, error) {
	conn, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	l := &link{conn: conn, replicas: replicationOf(cfg)}
	if lane != nil && l.replicas == nil {
		l.lanes = program.NewLanes(maxAlone, lane)
	}
	return l, nil
}

// laneOf returns what opens lanes to the server of the option.
func laneOf(option rueidis.ClientOption) program.OpenLane {
	option.AlwaysPipelining = false // else the goroutines of rueidis write and read
	option.PipelineMultiplex = -1   // one connection
	option.Dialer.KeepAlive = -1    // a ping in between would start these goroutines
	return func(ctx context.Context, l *program.Lane) (program.Conn, error) {
		dial, option := option.DialCtxFn, option
		option.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, secure *tls.Config) (net.Conn, error) {
			dialer := *d
			dialer.KeepAlive = program.KeepAlive
			return l.Dial(func() (net.Conn, error) { return dial(ctx, addr, &dialer, secure) })
		}
		client, err := newClient(ctx, option)
		if err != nil {
			return nil, err
		}
		return program.NewLaneConn(client), nil
	}
}

// send sends a command, and waits for the replicas, on one connection. A command alone takes a lane, if there is one
// and none is to be made.
func (l *link) send(ctx context.Context, cmd ...string) (reply, error) {
	if l.replicas != nil {
		return l.sendAndWait(ctx, cmd)
	}
	if _, dated := ctx.Deadline(); dated && l.lanes != nil {
		if r, err := l.lanes.Do(ctx, cmd...); !errors.Is(err, program.ErrNoConnection) {
			return r, err
		}
	}
	if _, alone := ctx.(*lone); alone {
		return reply{}, program.ErrNoConnection
	}
	return l.conn.Do(ctx, cmd...)
}

func (l *link) sendAndWait(ctx context.Context, cmd []string) (reply, error) {
	r := l.replicas
	got := l.conn.DoAll(ctx, cmd, r.extend(), r.wait())
	answer := got[0]
	if answer.Err != nil {
		return reply{}, answer.Err
	}
	there, err := got[1].Number()
	if err != nil {
		return reply{}, r.missing(err)
	}
	if there == 0 {
		got = l.conn.DoAll(ctx, r.create(), r.wait())
		if got[0].Err != nil {
			return reply{}, r.missing(got[0].Err)
		}
	}
	n, err := got[len(got)-1].Number()
	if err != nil {
		return reply{}, r.missing(err)
	}
	return answer.Reply, r.enough(n)
}

func (l *link) listen(ctx context.Context, channel string, ready func(), deliver func(payload string)) error {
	return l.conn.Listen(ctx, channel, ready, deliver)
}

func (l *link) hangUp() {
	if l.lanes != nil {
		l.lanes.HangUp()
	}
	l.conn.HangUp()
}

func (l *link) close() {
	if l.lanes != nil {
		l.lanes.Close()
	}
	l.conn.Close()
}
