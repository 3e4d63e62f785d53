package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// sizes are the sizes that must not grow in a soak: of the server, of its store, and of this
// process, by name.
type sizes map[string]int64

// room is the part of a size that is noise.
type room struct {
	share float64 // of the former size
	least int64   // at least this much
}

// roomOf depends on the last word of a size's name.
func roomOf(name string) room {
	switch name[strings.LastIndexByte(name, ' ')+1:] {
	case "memory": // garbage collectors and caches; a leak of an hour is larger
		return room{0.25, 24 << 20}
	case "goroutines", "descriptors", "sessions", "connections":
		return room{0.1, 4}
	default: // keys, rows: tombstones of ten minutes are among them
		return room{0.5, 2000}
	}
}

// grown reports what grew: it compares the median of the last third of the samples with that of
// the middle third, because a new process grows anyway. Fewer than six samples show nothing.
func grown(samples []sizes) []string {
	if len(samples) < 6 {
		return nil
	}
	third := len(samples) / 3
	middle, last := samples[third:2*third], samples[len(samples)-third:]
	var out []string
	for _, name := range namesOf(samples) {
		was, is := median(middle, name), median(last, name)
		r := roomOf(name)
		if is-was > max(r.least, int64(r.share*float64(was))) {
			out = append(out, fmt.Sprintf("%s grew from %d to %d", name, was, is))
		}
	}
	return out
}

func namesOf(samples []sizes) []string {
	var names []string
	for _, s := range samples {
		for name := range s {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

func median(samples []sizes, name string) int64 {
	var all []int64
	for _, s := range samples {
		if n, ok := s[name]; ok {
			all = append(all, n)
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// own adds the sizes of this process.
func (s sizes) own() {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s["test memory"] = int64(m.HeapAlloc)
	s["test goroutines"] = int64(runtime.NumGoroutine())
	s.process("test", os.Getpid())
}

// process adds the sizes of a process, if the system reports them, to those of others of that
// name.
func (s sizes) process(name string, pid int) {
	dir := "/proc/" + strconv.Itoa(pid)
	if fds, err := os.ReadDir(filepath.Join(dir, "fd")); err == nil {
		s[name+" descriptors"] += int64(len(fds))
	}
	text, err := os.ReadFile(filepath.Join(dir, "statm"))
	if err != nil || name == "test" {
		return
	}
	if fields := strings.Fields(string(text)); len(fields) > 1 {
		if pages, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
			s[name+" memory"] += pages * int64(os.Getpagesize())
		}
	}
}

// Growth is found, and fluctuation is not.
func TestGrown(t *testing.T) {
	t.Parallel()
	var steady, leaking, few []sizes
	for i := range int64(12) {
		steady = append(steady, sizes{"server memory": 100<<20 + i%3<<20, "server descriptors": 20 + i%2, "keys": 500 * (i % 2)})
		leaking = append(leaking, sizes{"server memory": (100 + 30*i) << 20, "test goroutines": 20 + 2*i, "keys": 1000 * i})
	}
	few = leaking[:5]
	if got := grown(steady); got != nil {
		t.Errorf("what is steady: %q", got)
	}
	if got := grown(few); got != nil {
		t.Errorf("what is too short: %q", got)
	}
	if got := grown(leaking); len(got) != 3 {
		t.Errorf("what leaks: %q", got)
	}
}
