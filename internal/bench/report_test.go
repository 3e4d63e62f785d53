package bench_test

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/bench"
)

// sample is a report in which ours is twice as fast as the bare commands, and slower than one peer.
func sample() *bench.Report {
	result := func(name string, ours bool, pairs float64) bench.Result {
		figures := bench.Figures{bench.PairsPerSecond: pairs, bench.PairP50: 1e-3, bench.DoubleHolds: 0, bench.Grants: 1000}
		return bench.Result{
			Engine: "redis", Scenario: "one/8/1ms", Title: "8 goroutines", Contender: name, Ours: ours,
			Rounds: []bench.Figures{figures, {bench.RequestsPerPair: 2}}, Figures: figures,
		}
	}
	return &bench.Report{
		At: time.Date(2026, 11, 28, 1, 2, 3, 0, time.UTC), Commit: "0123", CPU: "Abacus", Cores: 2, Load: 0.25, Rounds: 1, Budget: time.Second,
		Engines: []bench.EngineInfo{{Name: "redis", Version: "7.0.15"}},
		Results: []bench.Result{result("holdfast", true, 20_000), result("raw compare", false, 10_000), result("bsm/redislock", false, 16_000)},
	}
}

// What is kept can be read again.
func TestWriteRead(t *testing.T) {
	t.Parallel()
	want := sample()
	want.Results[2].Failed = "no ink\nno paper"
	var text bytes.Buffer
	if err := bench.Write(&text, want); err != nil {
		t.Fatal(err)
	}
	if line := "\nBenchmarkLock/redis/one/8/1ms/by=raw_compare-2\t1000\t10000 pairs-per-second\t1e+06 pair-p50-ns"; !strings.Contains(text.String(), line) {
		t.Errorf("no line %q:\n%s", line, text.String())
	}
	got, err := bench.Read(&text)
	if err != nil {
		t.Fatal(err)
	}
	for i := range want.Results { // these are not written
		x := &want.Results[i]
		x.Title, x.Ours, x.Failed = "", false, ""
		x.Figures[bench.RequestsPerPair] = 2
		x.Rounds[0] = bench.Figures{bench.PairsPerSecond: x.Figures[bench.PairsPerSecond], bench.PairP50: 1e-3, bench.DoubleHolds: 0, bench.Grants: 1000}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read back:\n%+v\nwritten:\n%+v", got, want)
	}
	for _, bad := range []string{"BenchmarkLock/redis", "BenchmarkLock/redis/own/8/by=x-two\t1", "BenchmarkLock/redis/own/8/by=x-2\t1\tmany jain", "# rounds: few"} {
		if _, err := bench.Read(strings.NewReader(bad + "\n")); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	r := sample()
	r.Results[2].Failed = "out of <ink>"
	var text bytes.Buffer
	if err := bench.Table(&text, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"redis 7.0.15", "2.00x", "20,000", "1.00 ms", "bsm/redislock FAILED: out of <ink>"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the table does not have %q:\n%s", want, text.String())
		}
	}
	broken := errors.New("no paper")
	if err := bench.Table(failing{broken}, r); !errors.Is(err, broken) {
		t.Errorf("a writer that fails: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
