//go:build !unix

package holdfast_test

import (
	"testing"
	"time"
)

// processorTime is unknown here: the wall clock replaces it.
func processorTime(*testing.T) time.Duration { return time.Duration(time.Now().UnixNano()) }
