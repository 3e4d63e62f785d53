package e2e_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
)

// TestMain runs the tests, or one of the programs that tests start in processes of their own.
func TestMain(m *testing.M) {
	if url := os.Getenv(candidateURL); url != "" {
		if err := candidateMain(url, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "candidate:", err)
			os.Exit(1)
		}
		return
	}
	if isClaimWorker() {
		claimWorker()
		return
	}
	leaktest.Main(m)
}
