//go:build !race

package holdfast_test

const raceAllocations = 0
