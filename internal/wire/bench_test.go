package wire_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/wire"
)

// BenchmarkBatch is the cost of decoding a batch of 32, for the server and for the client.
func BenchmarkBatch(b *testing.B) {
	const n = 16
	const lease = "abcdefghijklmnop01234567"
	var req wire.BatchRequest
	var lines [][]byte
	for i := range n {
		name := fmt.Sprint("own/", i)
		req.Acquire = append(req.Acquire, wire.BatchAcquire{Name: name, Lease: lease, TTL: wire.Duration(30 * time.Second), Owner: "host/123/456"})
		req.Release = append(req.Release, wire.BatchRelease{Name: name, Lease: lease})
		for _, res := range []wire.BatchResult{
			{Op: wire.OpAcquire, Item: i, Name: name, Lease: lease, Token: 12345678, TTL: wire.Duration(30 * time.Second), ExpiresAt: wire.Time{Time: time.Now()}},
			{Op: wire.OpRelease, Item: i, Name: name, Lease: lease},
		} {
			line, err := json.Marshal(res)
			if err != nil {
				b.Fatal(err)
			}
			lines = append(lines, line)
		}
	}
	body, err := json.Marshal(req)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("request", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var got wire.BatchRequest
			if err := wire.Decode(body, &got); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("answer", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for _, line := range lines {
				var got wire.BatchResult
				if err := json.Unmarshal(line, &got); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}
