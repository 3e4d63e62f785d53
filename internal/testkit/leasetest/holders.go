package leasetest

import (
	"os"
	"strconv"
)

// HoldersEnv is the environment variable that overrides Holders: 5000 is what the case is for.
const HoldersEnv = "HOLDFAST_HOLDERS"

// Holders returns the value for backendtest.Harness.Holders: the number of shared holders of
// one lock that a store makes within about ten seconds of a test run, or the number in
// HoldersEnv.
func Holders(within int) int {
	if n, err := strconv.Atoi(os.Getenv(HoldersEnv)); err == nil && n > 0 {
		return n
	}
	return within
}
