package cli

import "testing"

// One address beyond this host may have the default number of connections, the loopback many, and either
// as many as the flag says.
func TestLimitsFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		listen     string
		perAddress uint32
		want       int // 0: the server's default
	}{
		{"127.0.0.1:7420", 0, 10_000},
		{"[::1]:7420", 0, 10_000},
		{"localhost:7420", 0, 10_000},
		{":7420", 0, 0},
		{"0.0.0.0:7420", 0, 0},
		{"locks.example.com:7420", 0, 0},
		{"unix:/run/holdfast.sock", 0, 0},
		{"127.0.0.1:7420", 20, 20},
		{":7420", 5000, 5000},
	} {
		if got := limitsFor(c.listen, c.perAddress).ConnectionsPerIP; got != c.want {
			t.Errorf("%s with %d: %d, want %d", c.listen, c.perAddress, got, c.want)
		}
	}
}
