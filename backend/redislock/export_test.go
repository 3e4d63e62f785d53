package redislock

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
)

// Internals for the tests.

// ParsePush reports whether the payload is a valid notification.
func ParsePush(payload string) bool {
	_, ok := parsePush(payload)
	return ok
}

// ParseEvent parses an event.
func ParseEvent(payload string) (backend.Event, bool) { return parseEvent(payload) }

// ParsedURL is the content of a URL.
type ParsedURL struct {
	Address, Username, Password, ServerName, ClientName string
	DB                                                  int
	TLS, Socket                                         bool
	Config                                              Config
}

// ParseURL parses a URL.
func ParseURL(raw string) (ParsedURL, error) {
	t, err := parseURL(raw, Config{})
	if err != nil {
		return ParsedURL{}, err
	}
	o := t.option
	p := ParsedURL{
		Address: o.InitAddress[0], Username: o.Username, Password: o.Password, ClientName: o.ClientName, DB: o.SelectDB,
		TLS: o.TLSConfig != nil, Socket: strings.HasPrefix(o.InitAddress[0], "/"), Config: t.cfg,
	}
	if p.TLS {
		p.ServerName = o.TLSConfig.ServerName
	}
	return p, nil
}

// Reply is an answer of the server.
type Reply = reply

// Text, Int and List make answers.
var (
	Text = program.Text
	Int  = program.Int
	List = program.List
)

// DecodeAll decodes an answer in every way that there is, and returns the errors of the
// decoders.
func DecodeAll(answer []Reply) []error {
	var errs []error
	d := decode(answer)
	d.lock()
	errs = append(errs, d.Err)
	d = decode(answer)
	d.grant()
	errs = append(errs, d.Err)
	d = decode(answer)
	each(&d, answer, (*decoder).holder)
	errs = append(errs, d.Err)
	for _, timed := range []int{0, 1, 2} {
		_, err := decodeRenewal(answer, backend.RenewRequest{Session: "s", Leases: make([]backend.TimedRenewal, timed)})
		errs = append(errs, err)
	}
	errs = append(errs, refusal("test", new(decode(answer)), "name", 1))
	for i := range 2 {
		_, err := wordsOf(answer, i)
		errs = append(errs, err)
		if err == nil {
			b := &Backend{doubts: make(map[backend.LeaseID]time.Time)}
			_, err = b.conclude(backend.AcquireRequest{}, outcome{answer: answer[i].List}, false)
			errs = append(errs, err)
		}
	}
	return errs
}

// Exec makes the server run operations in one execution of the program, or each in its own,
// but in the same order. An acquire or a release is of one lease: the last two arguments.
func (b *Backend) Exec(ctx context.Context, together bool, ops [][]string) ([][]Reply, error) {
	batch := make([]*call, len(ops))
	for i, op := range ops {
		batch[i] = callOf(op)
		if op[0] == "session.open" {
			ttl, _ := time.ParseDuration(op[2] + "ms")
			s, _ := b.remember(backend.SessionRequest{ID: backend.SessionID(op[1]), TTL: ttl})
			s.confirmed(time.Now())
		}
		if c := batch[i]; c.op == opRelease && c.terms.abandon == "0" {
			c.thin, _ = b.forgetThin(backend.ReleaseRequest{Name: c.name, Session: backend.SessionID(c.terms.session), Lease: backend.LeaseID(c.lease)})
		}
	}
	all := make([][]reply, len(ops))
	if together {
		outcomes, _, err := b.engine.exchange(ctx, batch)
		for i := range outcomes {
			b.execThin(batch[i], &outcomes[i])
			all[i] = outcomes[i].words(batch[i].op)
		}
		return all, err
	}
	m := manifestOf(batch)
	for _, g := range m.groups {
		for _, i := range g.calls {
			outcomes, _, err := b.engine.exchange(ctx, batch[i:i+1])
			if err != nil {
				return nil, err
			}
			all[i] = outcomes[0].words(batch[i].op)
		}
	}
	return all, nil
}

// execThin remembers the records of the leases that went the short way.
func (b *Backend) execThin(c *call, o *outcome) {
	if c.op == opAcquire && o.err == nil && o.answer == nil && c.terms.ttl == "0" {
		b.tookThin(backend.SessionID(c.terms.session), backend.LeaseID(c.lease), c.member(o.granted))
	}
}

func callOf(op []string) *call {
	c := &call{op: op[0], args: op[1:]}
	switch a := op[1:]; op[0] {
	case opAcquire:
		c.terms = terms{
			session: a[0], ttl: a[1], limit: a[2], wait: a[3], mode: a[4], permits: a[5], channel: a[6], owner: a[7], note: a[8],
		}
		c.name, c.lease = a[9], a[10]
	case opRelease:
		c.terms = terms{abandon: a[0], session: a[1]}
		c.name, c.lease = a[2], a[3]
	case opCheck:
		c.terms, c.name, c.lease = terms{session: a[0]}, a[1], a[2]
	}
	return c
}

// words returns the answer that the server would have sent the long way.
func (o *outcome) words(op string) []reply {
	switch {
	case o.err != nil:
		return []reply{Text(o.err.Error())}
	case o.answer != nil:
		return o.answer
	case op == opRelease:
		return []reply{Text("OK")}
	}
	g := o.granted
	return []reply{Text("G"), Int(int64(g.token)), Int(g.since.UnixMicro()), Int(g.left.Microseconds()), Text(g.flag)}
}

// Words returns an answer as text, without what differs from run to run: tokens, times except for the minutes, and
// whether a grant is that of this very call.
func Words(answer []Reply) string {
	const fresh = 5
	var b strings.Builder
	for i, r := range answer {
		switch {
		case i == fresh && answer[0].S == "G":
			continue
		case r.Kind == program.ListReply:
			b.WriteString("(" + strconv.Itoa(len(r.List)) + ")")
		case r.Kind == program.TextReply:
			b.WriteString(r.S)
		case r.N > 1_000_000_000: // of this century
			b.WriteString("T")
		case i > 0 && r.N > 1_000_000: // of seconds
			b.WriteString("t" + strconv.FormatInt((r.N+30_000_000)/60_000_000, 10))
		default:
			b.WriteString(strconv.FormatInt(r.N, 10))
		}
		b.WriteByte(' ')
	}
	return b.String()
}

// CallFor is the command that acquires a lease alone, for the data that the client knows.
func (b *Backend) CallFor(req backend.AcquireRequest) ([]string, error) {
	p, err := newProgram()
	if err != nil {
		return nil, err
	}
	m := manifestOf([]*call{{
		op: opAcquire, name: req.Name, lease: string(req.Lease),
		terms: terms{session: string(req.Session), ttl: "0", limit: "0", wait: "0", mode: "x", permits: "1"},
	}})
	b.engine.mu.Lock()
	defer b.engine.mu.Unlock()
	return m.write([]string{"FCALL", p.Function(), "1", b.engine.key, b.engine.identity, "-"}), nil
}

// Intercept puts f between the backend and the server: f gets the name of an operation and
// sends the request with do. Call it before the first operation.
func (b *Backend) Intercept(f func(op string, do func())) {
	b.engine.link = intercepted{b.engine.link, f}
}

type intercepted struct {
	transport
	f func(op string, do func())
}

func (i intercepted) send(ctx context.Context, cmd ...string) (reply, error) {
	var r reply
	var err error
	switch args := argsOf(cmd); {
	case cmd[0] == "ZREM":
		i.f(opRelease, func() { r, err = i.transport.send(ctx, cmd...) })
	case args != nil:
		i.f(args[2], func() { r, err = i.transport.send(ctx, cmd...) })
	default:
		r, err = i.transport.send(ctx, cmd...)
	}
	return r, err
}

// argsOf returns the arguments of a call of the program, or nil for another command.
func argsOf(cmd []string) []string {
	const head = 4 // the command, what it calls, the number of keys, and the key
	if cmd[0] == "FCALL" || cmd[0] == "EVALSHA" || cmd[0] == "EVAL" {
		return cmd[head:]
	}
	return nil
}

// InflateBetween makes the server store about every other lock as a hash at the worst moments:
// after it was taken and before the answer arrives, and after a release was called and before
// it is sent. Call it before the first operation.
func (b *Backend) InflateBetween() { b.engine.link = inflating{b.engine.link, b.engine} }

type inflating struct {
	transport
	engine *engine
}

// Inflation are operations that make the server store a lock as a hash, if one execution runs them: a waiter comes and leaves.
func Inflation(name string) [][]string {
	return [][]string{
		{"session.open", "inflater", "60000", ""},
		{opAcquire, "inflater", "0", "0", "1", "x", "1", "", "", "", name, "inflates"},
		{opRelease, "0", "inflater", name, "inflates"},
	}
}

func (i inflating) inflate(ctx context.Context, name string) {
	if rand.IntN(2) == 0 {
		return
	}
	i.engine.mu.Lock()
	identity := i.engine.identity
	i.engine.mu.Unlock()
	args := []string{identity, "-"}
	for _, op := range Inflation(name) {
		m := manifestOf([]*call{callOf(op)})
		args = m.write(args)
	}
	_, _ = i.engine.runner.Run(ctx, i.transport.send, false, identity, i.engine.key, args)
}

func (i inflating) send(ctx context.Context, cmd ...string) (reply, error) {
	if cmd[0] == "ZREM" {
		name, _, _ := strings.Cut(cmd[2], "\n")
		i.inflate(ctx, name)
	}
	r, err := i.transport.send(ctx, cmd...)
	args := argsOf(cmd)
	for at := 2; err == nil && at < len(args); {
		n, err := strconv.Atoi(args[at+1])
		if err != nil {
			break
		}
		at += 2
		if args[at-2] == opAcquire {
			for k := at + acquireTerms; k < at+n; k += 2 {
				i.inflate(ctx, args[k])
			}
		}
		at += n
	}
	return r, err
}

// Word returns the first word of an answer.
func Word(answer []Reply) string { return answer[0].S }

// Number returns the number that r is.
func Number(r Reply) int64 { return r.N }

// Tag returns the beginning of all keys of the Backend.
func (b *Backend) Tag() string { return b.tag }

// Queued is the number of calls that wait to be sent.
func (b *Backend) Queued() int {
	b.engine.mu.Lock()
	defer b.engine.mu.Unlock()
	return len(b.engine.urgent) + len(b.engine.queue)
}

// KnownInQueue reports whether the server has confirmed that a lease is in the queue.
func (b *Backend) KnownInQueue(lease backend.LeaseID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.waiting[lease] {
		if !w.at.IsZero() {
			return true
		}
	}
	return false
}

// LaneAddr returns the local address of the connection that a caller alone uses next, or "" if none is
// open, or one is being opened.
func (b *Backend) LaneAddr() string {
	link, ok := b.link.(*link)
	if !ok || link.lanes == nil {
		return ""
	}
	return link.lanes.Addr()
}

// Rights are the commands that a user needs.
var Rights = rights

// BreakPart does the next step of a break.
func (b *Backend) BreakPart(ctx context.Context, req backend.BreakRequest, res *backend.BreakResult) (bool, error) {
	return b.breakPart(ctx, &req, res)
}
