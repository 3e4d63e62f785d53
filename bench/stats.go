package bench

import (
	"cmp"
	"math"
	"slices"
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
