//go:build race

package holdfast_test

// raceAllocations is how many allocations more a pair has with the race detector: crypto/rand.Text then
// keeps its buffer on the heap.
const raceAllocations = 1
