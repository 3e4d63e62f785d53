//go:build !unix

package engines

import "github.com/holdfast-io/holdfast/bench"

// fileLocks: this system has no flock.
const fileLocks = false

func flockLoop() bench.Contender { return bench.Contender{} }
