package bench

// Metric is the name of a figure. Times are in seconds.
type Metric string

// The figures. A figure that a scenario does not measure is missing.
const (
	PairsPerSecond    Metric = "pairs_per_second"    // acquire and release
	PairP50           Metric = "pair_p50"            // acquire and release, without the work between
	PairP99           Metric = "pair_p99"            //
	WaitP50           Metric = "wait_p50"            // the acquire
	WaitP99           Metric = "wait_p99"            //
	WaitMax           Metric = "wait_max"            //
	WaitP99Share      Metric = "wait_p99_share"      // WaitP99 / (waiters x mean hand-over): 1 is even
	HandOverP50       Metric = "hand_over_p50"       // from the call of release to the return of the next holder's call
	HandOverP99       Metric = "hand_over_p99"       //
	Fairness          Metric = "jain"                // Jain's index of the grants of each waiter
	RequestsPerPair   Metric = "requests_per_pair"   // sent to the server
	ClientCPUPerPair  Metric = "client_cpu_per_pair" // CPU time of this process
	ServerCPUPerPair  Metric = "server_cpu_per_pair" // CPU time of the server
	RequestsPerSecond Metric = "requests_per_second" //
	DoubleHolds       Metric = "double_holds"        // must be 0
	TokenFaults       Metric = "token_faults"        // must be 0
	Grants            Metric = "grants"              // grants that were checked
)

// Unit is how a figure is formatted for people.
type Unit uint8

// The units.
const (
	UnitCount   Unit = iota // 12,345
	UnitRatio               // 0.987
	UnitSeconds             // 1.23 ms
)

// MetricInfo describes a figure.
type MetricInfo struct {
	Metric Metric
	// Label is the title of its column.
	Label string
	Unit  Unit
	// Merge combines the values of all rounds into one.
	Merge func(rounds []float64) float64
}

// Metrics lists the figures in the order of the table.
func Metrics() []MetricInfo {
	return []MetricInfo{
		{PairsPerSecond, "pairs/s", UnitCount, Median},
		{PairP50, "pair p50", UnitSeconds, Median},
		{PairP99, "pair p99", UnitSeconds, Median},
		{WaitP50, "wait p50", UnitSeconds, Median},
		{WaitP99, "wait p99", UnitSeconds, Median},
		{WaitMax, "wait max", UnitSeconds, highest},
		{WaitP99Share, "wait p99/share", UnitRatio, Median},
		{HandOverP50, "hand-over p50", UnitSeconds, Median},
		{HandOverP99, "hand-over p99", UnitSeconds, Median},
		{Fairness, "Jain", UnitRatio, Median},
		{RequestsPerPair, "requests/pair", UnitRatio, Median},
		{ClientCPUPerPair, "client CPU/pair", UnitSeconds, Median},
		{ServerCPUPerPair, "server CPU/pair", UnitSeconds, Median},
		{RequestsPerSecond, "requests/s", UnitRatio, Median},
		{DoubleHolds, "double", UnitCount, total},
		{TokenFaults, "token faults", UnitCount, total},
		{Grants, "grants", UnitCount, total},
	}
}

// Figures are the figures of one round, or of all rounds.
type Figures map[Metric]float64

// merge combines the figures of all rounds. A figure that any round has is in the result.
func merge(rounds []Figures) Figures {
	all := make(Figures)
	for _, info := range Metrics() {
		var values []float64
		for _, r := range rounds {
			if v, ok := r[info.Metric]; ok {
				values = append(values, v)
			}
		}
		if len(values) > 0 {
			all[info.Metric] = info.Merge(values)
		}
	}
	return all
}

func highest(values []float64) float64 {
	top := values[0]
	for _, v := range values[1:] {
		top = max(top, v)
	}
	return top
}

func total(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum
}
