package bench

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Percentile is the smallest of the samples that p of them, 0 to 1, do not exceed: the
// nearest rank. It sorts the samples. Of no samples it is 0.
func Percentile[T cmp.Ordered](samples []T, p float64) T {
	if len(samples) == 0 {
		var zero T
		return zero
	}
	slices.Sort(samples)
	rank := int(math.Ceil(p*float64(len(samples)))) - 1
	return samples[min(max(rank, 0), len(samples)-1)]
}

// EvenPercentile is Percentile of the samples of several, each of whom counts the same,
// however many samples it has: who takes a lock ten thousand times at once must not hide
// the others, who waited for it.
func EvenPercentile(each [][]time.Duration, p float64) time.Duration {
	type sample struct {
		d      time.Duration
		weight float64
	}
	var all []sample
	sum := 0.0
	for _, samples := range each {
		for _, d := range samples {
			all = append(all, sample{d, 1 / float64(len(samples))})
		}
		if len(samples) > 0 {
			sum++
		}
	}
	slices.SortFunc(all, func(a, b sample) int { return cmp.Compare(a.d, b.d) })
	const slack = 1e-9 // of adding up
	below := 0.0
	for _, s := range all {
		below += s.weight
		if below >= p*sum-slack {
			return s.d
		}
	}
	return 0
}

// Median is the middle of the values, or the mean of the two in the middle. Of no values
// it is 0. The values stay in their order.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}

// Jain is the index of fairness of R. Jain: 1 when all have the same, 1/n when one of n
// has everything. Of nothing at all it is 0.
func Jain(shares []float64) float64 {
	var sum, squares float64
	for _, x := range shares {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(shares)) * squares)
}
