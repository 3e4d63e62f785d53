package runner

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/verify/history"
)

func someEvents() []history.Event {
	return []history.Event{
		{Kind: history.KindCall, At: 5, Worker: "1.1", Op: 1, Verb: history.VerbAcquire, Lock: "a", Acq: "x", Shared: true, Limit: 3, Permits: 2, TTL: 7},
		{Kind: history.KindReturn, At: 6, Worker: "1.1", Op: 1, Outcome: history.OK, Token: 1 << 60, Deadline: 1 << 50},
		{Kind: history.KindReturn, At: 6, Worker: "1.1", Op: 1, Outcome: history.Lost, Text: "gone", Told: true},
		{Kind: history.KindHeld, At: 7, Worker: "1.1.m2", Acq: "x", Deadline: 9},
		{Kind: history.KindTick, At: 8, Worker: "1.1"},
		{Kind: history.KindStall, At: 9, Worker: "1.1", Took: 3},
		{Kind: history.KindWrite, At: 9, Worker: "1.1", Register: history.Bare, Lock: "a", Acq: "x", Base: "b", Value: "v", Outcome: history.OK},
		{Kind: history.KindStart, At: 1, Worker: "1.1.m2", In: "1.1"},
	}
}

// Every record can be read again, and events with a short form are short.
func TestRecords(t *testing.T) {
	t.Parallel()
	writer, reader := newCodec("1.1"), newCodec("1.1")
	for _, e := range someEvents() {
		record, err := writer.append(nil, &e)
		if err != nil {
			t.Fatal(err)
		}
		body, err := readRecord(bufio.NewReader(bytes.NewReader(record)), nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := reader.decodeRecord(body)
		if err != nil || !reflect.DeepEqual(got, e) {
			t.Errorf("%+v became %+v, %v", e, got, err)
		}
		if short := e.Kind == history.KindCall || e.Kind == history.KindReturn || e.Kind == history.KindTick; short && len(record) > 48 {
			t.Errorf("%s: %d bytes", e.Kind, len(record))
		}
	}
}

// FuzzRecord: a record of a worker is decoded to a valid event, or refused.
func FuzzRecord(f *testing.F) {
	codec := newCodec("1.1")
	for _, e := range someEvents() {
		record, err := codec.append(nil, &e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(record)
	}
	f.Add([]byte{5, formShort, 200, 0, 0, 0})
	f.Fuzz(func(t *testing.T, record []byte) {
		codec := newCodec("1.1")
		body, err := readRecord(bufio.NewReader(bytes.NewReader(record)), nil)
		if err != nil {
			return
		}
		e, err := codec.decodeRecord(body)
		if err != nil {
			return
		}
		again, err := codec.append(nil, &e)
		if err != nil {
			t.Fatalf("%+v: %v", e, err)
		}
		if body, err = readRecord(bufio.NewReader(bytes.NewReader(again)), nil); err != nil {
			t.Fatal(err)
		}
		if same, err := codec.decodeRecord(body); err != nil || !reflect.DeepEqual(same, e) {
			t.Errorf("%+v became %+v, %v", e, same, err)
		}
	})
}

func TestRecordsThatCannotBe(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"too long": "\xff\xff\xff\xff\x7f", "cut short": "\x09abc"} {
		if _, err := readRecord(bufio.NewReader(newText(text)), nil); !errors.Is(err, errRecord) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func newText(s string) io.Reader { return bytes.NewReader([]byte(s)) }

// A call is made only when its record has left the process, which may be killed then. The
// record of a return need not have.
func TestACallIsOutBeforeItIsMade(t *testing.T) {
	t.Parallel()
	out, in := io.Pipe()
	r := newRecorder("1.1", in)
	called := make(chan struct{})
	go func() {
		r.now(history.Event{Kind: history.KindCall, Worker: "1.1", Op: 1, Verb: history.VerbTry, Lock: "a", Acq: "x"})
		close(called)
	}()
	first := make([]byte, 1)
	if _, err := io.ReadFull(out, first); err != nil { // it is being written
		t.Fatal(err)
	}
	second := make(chan struct{})
	go func() {
		r.now(history.Event{Kind: history.KindCall, Worker: "1.1", Op: 2, Verb: history.VerbTry, Lock: "a", Acq: "y"})
		close(second)
	}()
	for waits := false; !waits; {
		r.mu.Lock()
		waits = r.added == 2
		r.mu.Unlock()
	}
	r.later(history.Event{Kind: history.KindReturn, Worker: "1.1", Op: 1, Outcome: history.OK}) // does not wait
	select {
	case <-called:
		t.Error("the first call was made before its record was out")
	case <-second:
		t.Error("the second call was made before its record was out")
	default:
	}
	var read sync.WaitGroup
	read.Go(func() { _, _ = io.Copy(io.Discard, out) })
	<-called
	<-second
	_ = in.Close()
	read.Wait()
}

// On a machine that is short of processors the load is slower, and otherwise faster.
func TestPace(t *testing.T) {
	t.Parallel()
	p := newPacer(10, 1000, time.Second)
	for range 100 {
		p.adjust()
	}
	if p.rate != 1000 {
		t.Errorf("the pace is %.0f, want all", p.rate)
	}
	for range 100 {
		p.stalled(200 * time.Millisecond)
		p.adjust()
	}
	if p.rate != leastRate {
		t.Errorf("the pace is %.0f where nothing runs", p.rate)
	}
	p.begins(1)
	p.ends(1)
	if p.adjust(); p.rate <= leastRate {
		t.Error("a call that was quick made it slower")
	}
	for range 100 {
		p.adjust()
	}
	p.begins(2)
	p.calls[2] = p.calls[2].Add(-time.Second)
	if p.adjust(); p.rate >= 1000 {
		t.Error("a call that has no answer yet made it no slower")
	}
}

// Some workers have no fault, so that there is traffic.
func TestNotAllAreHurt(t *testing.T) {
	t.Parallel()
	r := &run{workers: make([]*workerHandle, 4), busy: make([]bool, 5), measure: measure{workers: 4, maxFaulty: 2}}
	for n := range 2 {
		if _, whom, free := r.reserveTarget(0); !free || whom != n {
			t.Errorf("fault %d: worker %d, %v", n, whom, free)
		}
	}
	if _, _, free := r.reserveTarget(3); free {
		t.Error("a third worker has a fault")
	}
	if _, _, free := r.reserveTarget(4); !free {
		t.Error("the servers wait for the workers")
	}
	r.releaseTarget(0)
	if _, whom, free := r.reserveTarget(0); !free || whom != 0 {
		t.Errorf("after one was healed: worker %d, %v", whom, free)
	}
}
