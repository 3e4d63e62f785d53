package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
)

// Bounds of what Read accepts, so that a file that is not a history does not fill the memory.
const (
	maxLine   = 1 << 20
	maxEvents = 20_000_000
)

// ErrFormat is the kind of a *FormatError.
var ErrFormat = errors.New("not a history")

// FormatError reports which line of a history is wrong, and how.
type FormatError struct {
	Line int
	Err  error
}

// Error returns a text such as: history: line 7: unknown kind "x".
func (e *FormatError) Error() string { return fmt.Sprintf("history: line %d: %v", e.Line, e.Err) }

// Unwrap makes the error match ErrFormat.
func (e *FormatError) Unwrap() []error { return []error{ErrFormat, e.Err} }

// Writer writes events as lines. Its methods are safe for concurrent use.
type Writer struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

// NewWriter returns a writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write writes one event, in one call of the underlying writer, so that a reader of a pipe
// whose writer dies reads whole lines. After an error, Write only returns that error.
func (w *Writer) Write(e Event) error {
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("history: write: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	if _, err := w.w.Write(append(line, '\n')); err != nil {
		w.err = fmt.Errorf("history: write: %w", err)
	}
	return w.err
}

// Write writes a whole history, which Read can read.
func Write(out io.Writer, h *History) error {
	w := NewWriter(out)
	err := w.Write(Event{Kind: KindHeader, At: h.Start, Header: &h.Header})
	for i := range h.Ops {
		o := &h.Ops[i]
		call := o.Event
		call.Outcome, call.Token, call.Deadline, call.Text, call.Told = "", 0, 0, "", false
		err = errors.Join(err, w.Write(call))
		if o.Return != Infinity {
			err = errors.Join(err, w.Write(Event{
				Kind: KindReturn, At: o.Return, Worker: o.Worker, Op: o.Op, Outcome: o.Outcome, Token: o.Token, Deadline: o.Deadline, Text: o.Text, Told: o.Told,
			}))
		}
		if err != nil {
			return err
		}
	}
	for _, e := range h.Events {
		if err := w.Write(e); err != nil {
			return err
		}
	}
	if h.Complete {
		err = errors.Join(err, w.Write(Event{Kind: KindFooter, At: h.End}))
	}
	return err
}

// ParseLine reads one line. It checks what can be checked of a single event.
func ParseLine(line []byte) (Event, error) {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	var e Event
	if err := d.Decode(&e); err != nil {
		return Event{}, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if d.More() {
		return Event{}, fmt.Errorf("%w: more than one value on the line", ErrFormat)
	}
	if err := e.Check(); err != nil {
		return Event{}, err
	}
	return e, nil
}

// Read reads a whole history.
//
// Errors: *FormatError for a wrong line; those of r.
func Read(r io.Reader) (*History, error) {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 64<<10), maxLine)
	var events []Event
	for n := 1; s.Scan(); n++ {
		e, err := ParseLine(s.Bytes())
		if err != nil {
			return nil, &FormatError{Line: n, Err: err}
		}
		if len(events) == maxEvents {
			return nil, &FormatError{Line: n, Err: fmt.Errorf("more than %d events", maxEvents)}
		}
		events = append(events, e)
	}
	if err := s.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return nil, &FormatError{Line: len(events) + 1, Err: fmt.Errorf("longer than %d bytes", maxLine)}
		}
		return nil, fmt.Errorf("history: read: %w", err)
	}
	return New(events)
}

// Check checks what can be checked of a single event: required fields, and that kind, verb and
// outcome are known.
//
// Errors: an error of kind [ErrFormat].
func (e *Event) Check() error {
	if err := e.check(); err != nil {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return nil
}

func (e *Event) check() error {
	switch e.Kind {
	case KindHeader:
		switch {
		case e.Header == nil || e.Version != Version:
			return fmt.Errorf("header: version must be %d", Version)
		case e.SessionTTL <= 0 || e.ExpiryLag < 0:
			return errors.New("header: session_ttl must be above 0, and expiry_lag not below")
		}
	case KindCall:
		return e.checkCall()
	case KindReturn:
		if e.Worker == "" || e.Op <= 0 {
			return errors.New("return: w and op are required")
		}
		return e.checkOutcome(OK, Held, Lost, Unknown, Refused)
	case KindHeld, KindLost:
		if e.Worker == "" || e.Acq == "" {
			return fmt.Errorf("%s: w and acq are required", e.Kind)
		}
	case KindRead, KindWrite:
		if e.Register != Bare && e.Register != Guarded || e.Lock == "" || e.Kind == KindWrite && e.Value == "" {
			return fmt.Errorf("%s: register must be bare or guarded, lock is required, and the value of a write", e.Kind)
		}
		return e.checkOutcome(OK, Refused)
	case KindStart, KindEnd, KindKill, KindFreeze, KindThaw, KindStall, KindSilence, KindTick:
		if e.Worker == "" || e.Took < 0 {
			return fmt.Errorf("%s: w is required, and took not below 0", e.Kind)
		}
	case KindFooter, KindFault, KindHeal, KindQuiet, KindLeft, KindNote:
	default:
		return fmt.Errorf("unknown kind %.20q", e.Kind)
	}
	return nil
}

func (e *Event) checkCall() error {
	if e.Worker == "" || e.Op <= 0 || e.Lock == "" || e.Acq == "" {
		return errors.New("call: w, op, lock and acq are required")
	}
	if e.TTL < 0 || e.Limit < 0 || e.Permits < 0 {
		return errors.New("call: ttl, limit and permits must not be below 0")
	}
	switch e.Verb {
	case VerbAcquire, VerbTry, VerbRenew, VerbRelease, VerbReenter, VerbLeave, VerbStaleRenew, VerbStaleRelease:
		return nil
	default:
		return fmt.Errorf("call: unknown verb %.20q", e.Verb)
	}
}

func (e *Event) checkOutcome(known ...Outcome) error {
	if slices.Contains(known, e.Outcome) {
		return nil
	}
	return fmt.Errorf("%s: unknown outcome %.20q", e.Kind, e.Outcome)
}
