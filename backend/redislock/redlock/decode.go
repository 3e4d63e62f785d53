package redlock

import (
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/fence"
)

// decoder reads an answer of the script: see program.Decoder. Any client with write access to the server may have
// forged it.
type decoder struct{ program.Decoder }

func decode(list []program.Reply) decoder { return decoder{program.Decoder{List: list}} }

// sub returns a list inside.
func (d *decoder) sub() *decoder { return new(decode(d.Items())) }

// vote is what a node has on record for a lease.
type vote struct {
	backend.Holder

	limit int
	final bool // the token is that of the grant
}

func (v *vote) claim() backend.Claim {
	return backend.Claim{Mode: v.Mode, Limit: v.limit, Permits: v.Permits}
}

// votes reads pairs of lease and record; now is the node's clock.
func (d *decoder) votes(now int64) []vote {
	all := d.sub()
	var vs []vote
	for len(all.List) > 0 && all.Err == nil {
		pair := all.sub()
		vs = append(vs, pair.vote(now))
		if pair.Err != nil {
			all.Err = pair.Err
		}
	}
	if all.Err != nil {
		d.Err = all.Err
	}
	return vs
}

func (d *decoder) vote(now int64) vote {
	const fields = 11
	v := vote{Holder: backend.Holder{Lease: backend.LeaseID(d.Text())}}
	f := strings.SplitN(d.Text(), "\n", fields)
	if len(f) != fields {
		d.Err = program.ErrReply
		return v
	}
	v.Mode = d.Mode(f[1])
	v.Permits, v.limit = int(d.Parse(f[2])), int(d.Parse(f[3]))
	v.Token = fence.Token(d.Parse(f[4])) //nolint:gosec // not negative
	v.final = f[5] == "1"
	v.Left = d.Duration(max(0, d.Parse(f[6])-now))
	v.Since = time.UnixMicro(d.Parse(f[7]))
	v.Owner, v.Note = f[9], f[10]
	return v
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
