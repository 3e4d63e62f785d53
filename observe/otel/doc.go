// Package otel reports what happens to locks as OpenTelemetry spans and metrics.
//
//	t, err := otel.New(otel.Options{Backend: "redis"})
//	locks, err := holdfast.New(b, holdfast.Config{Hooks: t.Hooks()})
//
// There are two spans for each lock. holdfast.acquire lasts from the call to the grant or to the failure.
// holdfast.hold lasts from the grant to the release or the loss. Both are children of the span in the
// context of the call that acquired the lock, and the second has a link to the first. They have the name
// of the lock, the token, the mode, and the result or the cause of the end. A span is made when it ends,
// so that a process that dies leaves none behind that is open.
//
// The metrics are holdfast.acquire.wait and holdfast.hold (histograms, in seconds), and holdfast.lost. Their
// attributes are the backend, the mode, the result and the cause. The name of a lock is an attribute of a
// metric only as far as [Options].Name reduces it to few values, because there may be millions of names.
//
// The package is a module of its own. Package observe has more metrics, for Prometheus.
package otel
