package redislock

import (
	"strconv"
	"strings"

	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
)

// terms are what many acquires, releases or checks have in common: everything that is sent
// for them except the lock and the lease. See acquire.lua and release.lua.
type terms struct {
	session string
	abandon string // of a release
	// Of an acquire.
	ttl, limit, wait, mode, permits, channel, owner, note string
}

// manifest is a batch as it is sent: operations, of which acquire, release and check carry many
// leases. A lease adds only its own name and ID.
type manifest struct {
	batch  []*call
	groups []group
	size   int // the number of arguments that write appends
}

// group is one operation: the calls that it answers, by their index in the batch.
type group struct {
	first *call
	calls []int
}

// manyGroups is the number of groups that a call is compared with, from the last one back.
const manyGroups = 8

func manifestOf(batch []*call) manifest {
	m := manifest{batch: batch}
	for i, c := range batch {
		m.add(i, c)
	}
	return m
}

func (m *manifest) add(i int, c *call) {
	const head, lease = 2, 2
	if c.name == "" {
		m.groups = append(m.groups, group{first: c, calls: []int{i}})
		m.size += head + len(c.args)
		return
	}
	for k := len(m.groups) - 1; k >= max(0, len(m.groups)-manyGroups); k-- {
		if g := &m.groups[k]; g.first.op == c.op && g.first.name != "" && g.first.terms == c.terms {
			g.calls = append(g.calls, i)
			m.size += lease
			return
		}
	}
	m.groups = append(m.groups, group{first: c, calls: append(make([]int, 0, len(m.batch)-i), i)})
	m.size += head + releaseTerms + lease // no operation has more terms
}

// The number of arguments that are the terms of each operation.
const acquireTerms, releaseTerms, checkTerms = 1, 2, 1

// write appends the arguments.
func (m *manifest) write(args []string) []string {
	for i := range m.groups {
		g := &m.groups[i]
		c, t := g.first, &g.first.terms
		args = append(args, c.op)
		switch c.op {
		case opAcquire:
			args = append(args, strconv.Itoa(acquireTerms+2*len(g.calls)),
				strings.Join([]string{t.session, t.ttl, t.limit, t.wait, t.mode, t.permits, t.channel, t.owner, t.note}, "\n"))
		case opRelease:
			args = append(args, strconv.Itoa(releaseTerms+2*len(g.calls)), t.abandon, t.session)
		case opCheck:
			args = append(args, strconv.Itoa(checkTerms+2*len(g.calls)), t.session)
		default:
			args = append(append(args, strconv.Itoa(len(c.args))), c.args...)
			continue
		}
		for _, k := range g.calls {
			if c := m.batch[k]; c.thin != "" {
				args = append(args, c.thin, "")
			} else {
				args = append(args, c.name, c.lease)
			}
		}
	}
	return args
}

// alone reports whether the batch is one lease that is to be granted.
func (m *manifest) alone() bool { return len(m.batch) == 1 && m.batch[0].op == opAcquire }

// outcomes returns the outcomes of the calls of the batch.
func (m *manifest) outcomes(answers []reply) []outcome {
	all := make([]outcome, len(m.batch))
	for i := range m.groups {
		g := &m.groups[i]
		answer, err := wordsOf(answers, i)
		switch {
		case err != nil:
			for _, k := range g.calls {
				all[k].err = err
			}
		case g.first.name == "":
			all[g.calls[0]].answer = answer
		default:
			g.share(answer, all)
		}
	}
	return all
}

// share splits the answer of an operation of many leases.
func (g *group) share(answer []reply, all []outcome) {
	d := decode(answer)
	switch word := d.Text(); {
	case word == "EACH":
		for i, k := range g.calls {
			if all[k].answer, all[k].err = wordsOf(d.List, i); all[k].err == nil {
				all[k].shorten()
			}
		}
		return
	case word == "ALL" && g.first.op == opAcquire:
		first := granted{token: d.Token(), since: d.Instant(), left: d.Micros(), flag: "-"}
		for _, k := range g.calls {
			all[k].granted = first
			first.token++
		}
	case word != "ALL":
		d.Err = program.ErrReply
	}
	if d.Err != nil {
		for _, k := range g.calls {
			all[k].err = &sentError{sent: true, err: d.Err}
		}
	}
}

// shorten takes the grant out of an answer that says that the lease went the short way.
func (o *outcome) shorten() {
	if o.answer[0].S != "T" {
		return
	}
	d := decode(o.answer[1:])
	o.granted = granted{token: d.Token(), since: d.Instant(), left: d.Micros(), flag: "-"}
	o.answer = nil
	if d.Err != nil {
		o.err = &sentError{sent: true, err: d.Err}
	}
}

// member is the record of a thin lock, as the program stores it: see lua/head.lua.
func (c *call) member(g granted) string {
	t := &c.terms
	return strings.Join([]string{
		c.name, c.lease, t.session, "x", t.permits, strconv.FormatUint(uint64(g.token), 10), itoa(g.since.UnixMicro()), "0", "-",
		t.channel, t.owner, t.note,
	}, "\n")
}

// wordsOf returns answer i, which must be a list that begins with a word.
func wordsOf(answers []reply, i int) ([]reply, error) {
	if i >= len(answers) || answers[i].Kind != program.ListReply || len(answers[i].List) == 0 || answers[i].List[0].Kind != program.TextReply {
		return nil, &sentError{sent: true, err: program.ErrReply}
	}
	list := answers[i].List
	if list[0].S == "ERR" {
		if len(list) < 2 {
			return nil, &sentError{sent: true, err: program.ErrReply}
		}
		return nil, &sentError{sent: true, err: program.NewServerError(list[1].S)}
	}
	return list, nil
}
