package bench

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// schema is the version of the format of a Report.
const schema = 1

// NewReport returns an empty report of a run that begins now on this machine.
func NewReport(o Options) *Report {
	r := &Report{
		Schema: schema, At: time.Now().UTC().Truncate(time.Second), Rounds: o.Rounds, Budget: o.Budget,
		Machine: Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPU: cpuModel(), Cores: runtime.NumCPU(), Go: runtime.Version(), LoadFrom: load()},
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		r.Version = info.Main.Version
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				r.Commit = s.Value + r.Commit
			case s.Key == "vcs.modified" && s.Value == "true":
				r.Commit += "+changes"
			}
		}
	}
	return r
}

// cpuModel returns Linux's name of the processor; empty elsewhere.
func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// load returns the load average of the last minute; 0 if it is unknown.
func load() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	value, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return value
}
