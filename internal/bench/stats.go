package bench

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Percentile returns the smallest sample that is not exceeded by a fraction p, 0 to 1, of the
// samples: the nearest rank. It sorts the samples. Without samples it returns 0.
func Percentile[T cmp.Ordered](samples []T, p float64) T {
	if len(samples) == 0 {
		var zero T
		return zero
	}
	slices.Sort(samples)
	rank := int(math.Ceil(p*float64(len(samples)))) - 1
	return samples[min(max(rank, 0), len(samples)-1)]
}

// EvenPercentile is Percentile over the samples of several goroutines, each with the same weight,
// however many samples it has: a goroutine that acquires a lock ten thousand times in a row must
// not hide the others, which waited for it.
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
	const slack = 1e-9 // for rounding errors of the sum
	below := 0.0
	for _, s := range all {
		below += s.weight
		if below >= p*sum-slack {
			return s.d
		}
	}
	return 0
}

// Median returns the middle value, or the mean of the two middle values. Without values it returns
// 0. It does not reorder the values.
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

// Jain returns R. Jain's index of fairness: 1 when all shares are equal, 1/n when one of n has
// everything, 0 when all shares are 0.
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
