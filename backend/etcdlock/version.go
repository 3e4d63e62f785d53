package etcdlock

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"
)

// sound returns the first versions without the stale reads of a member that was paused, by minor
// version of etcd 3.
func sound() map[int]int { return map[int]int{4: 42, 5: 28, 6: 9} }

// checkVersions warns of members with known faults. It asks each member once.
func (b *Backend) checkVersions(ctx context.Context) {
	for _, ep := range b.client.Endpoints() {
		rctx, cancel := context.WithTimeout(ctx, b.cfg.RequestTimeout)
		resp, err := b.client.Status(rctx, ep)
		cancel()
		if err != nil {
			continue
		}
		b.cluster.Store(resp.Header.ClusterId)
		if versionSound(resp.Version) {
			continue
		}
		b.cfg.Logger.LogAttrs(ctx, slog.LevelWarn,
			"this etcd can answer from the past after it was paused: use 3.4.42, 3.5.28, 3.6.9 or newer",
			slog.String("endpoint", ep[strings.LastIndexByte(ep, '@')+1:]), slog.String("version", resp.Version))
	}
}

// versionSound reports whether the version is not known to be unsound.
func versionSound(version string) bool {
	const newest = 6
	var major, minor, patch int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); err != nil || major > 3 {
		return true
	}
	return major == 3 && (minor > newest || patch >= cmp.Or(sound()[minor], math.MaxInt))
}
