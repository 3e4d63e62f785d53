package redisfence

import (
	"testing"

	"github.com/holdfast-io/holdfast/fence"
)

// FuzzStamp: a written stamp is read unchanged, and no other text causes a failure.
func FuzzStamp(f *testing.F) {
	f.Add("0000000001.0000000000000000007", uint32(1), uint64(7))
	f.Add(" 1.-2", uint32(0), uint64(1)<<62)
	f.Add("4294967296.1", ^uint32(0), uint64(1))
	f.Fuzz(func(t *testing.T, text string, epoch uint32, n uint64) {
		parseStamp(text)
		stamp := fence.Stamp{Epoch: epoch, Token: fence.Token(n >> 1)} // as great as tokens get
		written := format(stamp)
		if got, ok := parseStamp(written); !ok || got != stamp {
			t.Errorf("%v is written as %q and read as %v, %t", stamp, written, got, ok)
		}
	})
}
