package bench

import "fmt"

// Target is a performance goal: a bound on a figure of ours, or on its ratio to the figure of
// another contender.
type Target struct {
	Engine   string `json:"engine"`
	Scenario string `json:"scenario"`
	Metric   Metric `json:"metric"`
	// Over is the contender by whose figure ours is divided; empty: the figure of ours itself is
	// bounded.
	Over string `json:"over,omitempty"`
	// AtMost is true for an upper bound.
	AtMost bool    `json:"at_most"`
	Bound  float64 `json:"bound"`
	// Why is the reason for the target, for people.
	Why string `json:"why"`
}

// Verdict is a target and what was measured.
type Verdict struct {
	Target

	// Measured is false when the run did not have the needed results; then Value and Met mean
	// nothing.
	Measured bool    `json:"measured"`
	Value    float64 `json:"value"`
	Met      bool    `json:"met"`
}

// Targets returns all performance goals.
func Targets() []Target {
	const bare = "raw compare" // the two commands that a lock needs at least
	all := []Target{
		target("redis", "own/1", PairsPerSecond, bare, 0.95, "alone, as fast as the two bare commands"),
		target("redis", "own/8", PairsPerSecond, bare, 0.9, "a few, nearly as fast as the two bare commands"),
		target("redis", "own/16", PairsPerSecond, bare, 0.95, "some more, as fast as the two bare commands"),
		target("redis", "own/32", PairsPerSecond, bare, 0.95, "some more, as fast as the two bare commands"),
		target("redis", "own/64", PairsPerSecond, bare, 1, "as fast as the two bare commands, with a queue and a token"),
		target("redis", "own/256", PairsPerSecond, bare, 1, "as fast as the two bare commands, with a queue and a token"),
		target("redis", "own/64", PairsPerSecond, "bsm/redislock", 1.9, "ahead of the fastest Go library"),
		target("redis", "procs/4x8/own", PairsPerSecond, bare, 0.9, "several processes, nearly as fast as the two bare commands"),
		atMost(target("redis", "sessions/1000", CommandsPerPair, "", 25, "a hand-over costs the same however many sessions wait")),
		atMost(target("redis", "idle/1000", RequestsPerSecond, "", 5, "a waiter sends nothing")),
		atMost(target("redis", "renew/100000", RequestsPerSecond, "", 10, "one renewal for all leases")),
		atMost(target("redis", "renew/100000", BytesEach, "", 1024, "a lease is small")),
		atMost(target("redis", "renew/100000", Goroutines, "", 20, "no goroutine for each lock")),
	}
	for _, scenario := range []string{"one/100", "one/1000"} {
		all = append(all,
			target("redis", scenario, Fairness, "", 0.99, "first come, first served"),
			atMost(target("redis", scenario, HandOverPings, "", 2, "a hand-over is a request and a push")),
			atMost(target("redis", scenario, WaitP99Share, "", 1.3, "no waiter waits longer than the queue takes")),
		)
		for _, peer := range []string{"redsync", "bsm/redislock", "rueidislock"} {
			all = append(all, atMost(target("redis", scenario, WaitP99, peer, 0.05, "20 times better than those who ask again and again")))
		}
	}
	for _, scenario := range []string{"one/8/1ms", "one/100/1ms", "one/1000/1ms"} {
		all = append(all, target("redis", scenario, Utilisation, "", 0.85, "the lock works, not the hand-over"))
	}
	for _, peer := range []string{"bsm/redislock", "redsync", "rueidislock"} {
		all = append(all, target("redis", "own/1", PairsPerSecond, peer, 1, "alone, ahead of the lock libraries"))
	}
	for _, engine := range []string{"postgres", "mysql", "etcd", "zookeeper", "consul"} {
		all = append(all, target(engine, "own/1", PairsPerSecond, "raw", 0.95, "alone, as fast as the two bare statements or calls"))
	}
	return append(all,
		target("memory", "own/1", PairsPerSecond, "", 1/1.5e-6, "the client by itself: 1.5 microseconds a pair"),
		target("redlock", "own/1", PairsPerSecond, "redsync", 1, "alone, as fast as the other library"),
		target("redlock", "own/64", PairsPerSecond, "redsync", 3, "one request to a node for all callers, and no caller waits for the slowest node"),
		target("redlock-hung", "own/64", PairsPerSecond, "redsync", 3, "a node that hangs delays no caller"),
		target("etcd", "own/64", PairsPerSecond, "etcd concurrency", 3, "ahead of etcd's own client"),
		target("etcd", "own/64", PairsPerSecond, "raw", 2, "many locks in one transaction"),
		target("etcd", "one/50", PairsPerSecond, "etcd concurrency", 4, "hand-overs a second"),
		target("zookeeper", "own/64", PairsPerSecond, "go-zookeeper", 1.5, "ahead of ZooKeeper's Go client"),
		target("zookeeper", "one/50", PairsPerSecond, "go-zookeeper", 1.5, "hand-overs a second"),
		target("consul", "own/64", PairsPerSecond, "consul/api", 1.5, "ahead of Consul's own client"),
		target("consul", "one/50", PairsPerSecond, "consul/api", 1.5, "hand-overs a second"),
		target("mysql", "own/64", PairsPerSecond, "raw", 2, "many locks in one transaction, with a queue and a token"),
		target("postgres", "own/64", PairsPerSecond, "raw", 2, "many locks in one transaction, with a queue and a token"),
		target("postgres", "own/64", PairsPerSecond, "cirello pglock", 3, "ahead of the lock library for PostgreSQL"),
		atMost(target("postgres", "one/50", WaitP99, "cirello pglock", 0.05, "20 times better than those who ask again and again")),
		atMost(target("postgres", "one/50", WaitP99, "advisory loop", 0.2, "push, not polling")),
		target("sqlite", "own/1", PairsPerSecond, "raw", 0.9, "alone, nearly as fast as the two bare statements"),
		target("sqlite", "own/64", PairsPerSecond, "raw", 0.9, "many locks in one transaction, with a queue and a token"),
		target("holdfast", "own/1", PairsPerSecond, "etcd v3lock", 1.1, "HTTP ahead of etcd's lock service over gRPC"),
		target("holdfast", "own/64", PairsPerSecond, "etcd v3lock", 1.5, "HTTP ahead of etcd's lock service over gRPC"),
		target("holdfast-guarded", "own/1", PairsPerSecond, "plain", 0.85, "TLS, identity, limits and audit on, beside off"),
		target("holdfast-guarded", "own/64", PairsPerSecond, "plain", 0.85, "TLS, identity, limits and audit on, beside off"),
	)
}

func target(engine, scenario string, m Metric, over string, bound float64, why string) Target {
	return Target{Engine: engine, Scenario: scenario, Metric: m, Over: over, Bound: bound, Why: why}
}

// atMost makes the bound an upper bound.
func atMost(t Target) Target {
	t.AtMost = true
	return t
}

// Judge compares the report with the targets of its engines.
func Judge(r *Report, targets []Target) []Verdict {
	var verdicts []Verdict
	for _, t := range targets {
		if !r.has(t.Engine) {
			continue
		}
		v := Verdict{Target: t}
		v.Value, v.Measured = t.value(r)
		v.Met = v.Measured && (t.AtMost && v.Value <= t.Bound || !t.AtMost && v.Value >= t.Bound)
		verdicts = append(verdicts, v)
	}
	return verdicts
}

func (t *Target) value(r *Report) (float64, bool) {
	ours := r.ours(t.Engine, t.Scenario)
	if ours == nil || ours.Failed != "" {
		return 0, false
	}
	if t.Over != "" {
		return Ratio(ours, r.Find(t.Engine, t.Scenario, t.Over), t.Metric)
	}
	value, ok := ours.Figures[t.Metric]
	return value, ok
}

// ours returns our own result; nil if there is none.
func (r *Report) ours(engine, scenario string) *Result {
	for i, x := range r.Results {
		if x.Engine == engine && x.Scenario == scenario && x.Kind == KindOurs {
			return &r.Results[i]
		}
	}
	return nil
}

func (r *Report) has(engine string) bool {
	for _, e := range r.Engines {
		if e.Name == engine {
			return true
		}
	}
	return false
}

// Label returns what is bounded: "own/64 pairs/s / raw".
func (t *Target) Label() string {
	label := string(t.Metric)
	for _, info := range Metrics() {
		if info.Metric == t.Metric {
			label = info.Label
		}
	}
	if t.Over != "" {
		label += " / " + t.Over
	}
	return t.Scenario + " " + label
}

// Wanted returns the bound, for people.
func (t *Target) Wanted() string {
	sign := ">="
	if t.AtMost {
		sign = "<="
	}
	return fmt.Sprintf("%s %s", sign, shortNumber(t.Bound))
}

// Got returns what was measured, for people.
func (v *Verdict) Got() string {
	if !v.Measured {
		return "-"
	}
	return shortNumber(v.Value)
}

// State returns "met", "MISSED" or "not measured".
func (v *Verdict) State() string {
	switch {
	case !v.Measured:
		return "not measured"
	case v.Met:
		return "met"
	default:
		return "MISSED"
	}
}

func shortNumber(v float64) string {
	if v >= 1000 {
		return thousands(v)
	}
	return fmt.Sprintf("%.3g", v)
}
