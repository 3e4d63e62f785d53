package engines

import "github.com/holdfast-io/holdfast/bench"

// Memory is our client without any server: what the client itself costs.
func Memory() *bench.Engine {
	return &bench.Engine{
		Name: "memory", URL: "memory://", Local: true,
		Contenders: []bench.Contender{Ours()}, Close: func() error { return nil },
	}
}
