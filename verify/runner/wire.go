package runner

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/holdfast-io/holdfast/verify/history"
)

// A worker writes a sequence of records: the length, and then an event. An event that has only
// the fields of the calls, as nearly all events do, is in a short form; the others are JSON.
const (
	formJSON  = 0
	formShort = 1
)

// maxRecord bounds a record: the stacks of a worker are the longest text.
const maxRecord = 1 << 20

// maxNames bounds the names that a codec remembers.
const maxNames = 10_000

var errRecord = errors.New("verify: a worker wrote something other than a record")

// shortKinds are the kinds that have a short form; the number of a kind is its index.
func shortKinds() []history.Kind {
	return []history.Kind{history.KindCall, history.KindReturn, history.KindHeld, history.KindTick}
}

func shortVerbs() []history.Verb {
	return []history.Verb{
		"", history.VerbAcquire, history.VerbTry, history.VerbRenew, history.VerbRelease, history.VerbReenter, history.VerbLeave,
		history.VerbStaleRenew, history.VerbStaleRelease,
	}
}

func shortOutcomes() []history.Outcome {
	return []history.Outcome{"", history.OK, history.Held, history.Lost, history.Unknown, history.Refused}
}

// codec encodes and decodes events of one worker, whose name it leaves out.
type codec struct {
	worker   string
	kinds    []history.Kind
	verbs    []history.Verb
	outcomes []history.Outcome
	names    map[string]string // of locks, so that each is in memory once
}

func newCodec(worker string) *codec {
	return &codec{worker: worker, kinds: shortKinds(), verbs: shortVerbs(), outcomes: shortOutcomes(), names: make(map[string]string)}
}

// append appends the record of an event.
func (c *codec) append(to []byte, e *history.Event) ([]byte, error) {
	body := make([]byte, 0, 128) //nolint:mnd // most are shorter
	kind := place(c.kinds, e.Kind)
	short := *e
	short.Kind, short.At, short.Worker, short.Op, short.Verb, short.Outcome, short.Lock, short.Acq, short.Text = "", 0, "", 0, "", "", "", "", ""
	short.Shared, short.Told, short.Limit, short.Permits, short.TTL, short.Token, short.Deadline = false, false, 0, 0, 0, 0, 0
	verb, outcome := place(c.verbs, e.Verb), place(c.outcomes, e.Outcome)
	if kind < 0 || verb < 0 || outcome < 0 || short != (history.Event{}) {
		text, err := json.Marshal(e)
		if err != nil {
			return to, fmt.Errorf("verify: record an event: %w", err)
		}
		body = append(append(body, formJSON), text...)
	} else {
		body = append(body, formShort, byte(kind), byte(verb), byte(outcome), bits(e.Shared, e.Told)) //nolint:gosec // indexes in short lists
		for _, n := range []int64{e.At, e.Op, int64(e.Limit), int64(e.Permits), e.TTL, e.Deadline} {
			body = binary.AppendVarint(body, n)
		}
		body = binary.AppendUvarint(body, e.Token)
		worker := e.Worker
		if worker == c.worker {
			worker = ""
		}
		for _, s := range []string{worker, e.Lock, e.Acq, e.Text} {
			body = append(binary.AppendUvarint(body, uint64(len(s))), s...)
		}
	}
	return append(binary.AppendUvarint(to, uint64(len(body))), body...), nil
}

func place[T comparable](all []T, one T) int {
	for i, v := range all {
		if v == one {
			return i
		}
	}
	return -1
}

func bits(flags ...bool) byte {
	var b byte
	for i, set := range flags {
		if set {
			b |= 1 << i
		}
	}
	return b
}

// readRecord reads one record. At the end of the input it returns io.EOF, or
// io.ErrUnexpectedEOF in the middle of a record.
func readRecord(in *bufio.Reader, buf []byte) ([]byte, error) {
	n, err := binary.ReadUvarint(in)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller knows where it reads
	}
	if n > maxRecord {
		return nil, errRecord
	}
	if uint64(cap(buf)) < n {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	_, err = io.ReadFull(in, buf)
	return buf, err //nolint:wrapcheck // the same
}

// decodeRecord decodes the event of a record. It checks what can be checked of a single event.
func (c *codec) decodeRecord(body []byte) (history.Event, error) {
	if len(body) > 0 && body[0] == formJSON {
		return history.ParseLine(body[1:])
	}
	const head = 5
	if len(body) < head || body[0] != formShort || int(body[1]) >= len(c.kinds) || int(body[2]) >= len(c.verbs) || int(body[3]) >= len(c.outcomes) {
		return history.Event{}, errRecord
	}
	e := history.Event{
		Kind: c.kinds[body[1]], Verb: c.verbs[body[2]], Outcome: c.outcomes[body[3]],
		Shared: body[4]&1 != 0, Told: body[4]&2 != 0,
	}
	rest := bytes.NewReader(body[head:])
	var limit, permits int64
	for _, to := range []*int64{&e.At, &e.Op, &limit, &permits, &e.TTL, &e.Deadline} {
		n, err := binary.ReadVarint(rest)
		if err != nil {
			return history.Event{}, errRecord
		}
		*to = n
	}
	e.Limit, e.Permits = int(limit), int(permits)
	token, err := binary.ReadUvarint(rest)
	if err != nil {
		return history.Event{}, errRecord
	}
	e.Token = token
	for _, to := range []*string{&e.Worker, &e.Lock, &e.Acq, &e.Text} {
		n, err := binary.ReadUvarint(rest)
		if err != nil || n > uint64(rest.Len()) { //nolint:gosec // it is not below 0
			return history.Event{}, errRecord
		}
		text := make([]byte, n)
		_, _ = rest.Read(text) // it has enough bytes
		*to = string(text)
	}
	e.Worker = cmp.Or(e.Worker, c.worker)
	if known, ok := c.names[e.Lock]; ok {
		e.Lock = known
	} else {
		if len(c.names) >= maxNames {
			clear(c.names)
		}
		c.names[e.Lock] = e.Lock
	}
	if err := e.Check(); err != nil {
		return history.Event{}, err
	}
	return e, nil
}
