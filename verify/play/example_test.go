package play_test

import (
	"fmt"

	"github.com/holdfast-io/holdfast/verify/play"
)

// The history names the command that repeats a run. It shows the backend's URL without secrets.
func ExampleShown() {
	fmt.Println(play.Shown("redis://app:secret@10.0.0.7:6379?prefix=shop"))
	// Output: redis://app:xxxxx@10.0.0.7:6379?prefix=shop
}
