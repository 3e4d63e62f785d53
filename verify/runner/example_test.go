package runner_test

import (
	"fmt"

	"github.com/holdfast-io/holdfast/verify/runner"
)

// The history names the command that repeats a run. It shows the backend's URL without secrets.
func ExampleShown() {
	fmt.Println(runner.Shown("redis://app:secret@10.0.0.7:6379?prefix=shop"))
	// Output: redis://app:xxxxx@10.0.0.7:6379?prefix=shop
}
