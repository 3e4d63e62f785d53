// Package observe exports what happens to locks as Prometheus metrics.
//
//	m, err := observe.NewPrometheus(prometheus.DefaultRegisterer, observe.Options{Backend: "redis"})
//	locks, err := holdfast.New(m.Backend(b), holdfast.Config{Hooks: m.Hooks()})
//
// Labels are the backend, the mode ("exclusive", "shared"), results and causes. The name of a lock
// is never a label, because there may be millions of names. Every series exists from the start with
// the value zero, so that an alert on a rate works with the first event.
//
// The metric to alert on is holdfast_renew_margin_seconds: how much of a lease was left when its
// renewal was acknowledged. It shrinks before locks are lost.
//
//	holdfast_acquire_total{backend,mode,result}   attempts, by their result
//	holdfast_wait_seconds{backend,mode}           from the call to the grant
//	holdfast_hold_seconds{backend,mode}           from the grant to the end
//	holdfast_handoff_seconds{backend}             from a release to the next grant
//	holdfast_queue_depth{backend}                 acquisitions in progress
//	holdfast_oldest_waiter_seconds{backend}       age of the oldest of them
//	holdfast_held{backend,mode}                   leases that this process was granted, and are held
//	holdfast_renew_total{backend,result}          renewals
//	holdfast_renew_margin_seconds{backend}        left when acknowledged
//	holdfast_lost_total{backend,cause}            losses reported to holders
//	holdfast_break_total{backend}                 locks broken by operators
//	holdfast_fence_rejected_total{backend}        stale tokens refused
//	holdfast_wake_lost_total{backend}             grants found by timer, not by push
//	holdfast_ambiguous_total{backend,op}          outcomes that had to be settled
//	holdfast_sessions{backend}                    sessions on the backend
//	holdfast_quota_rejected_total{backend,quota}  refused by the server's limits
//	holdfast_auth_failed_total{backend}           refused by the server's guard
//	holdfast_untold_total{backend,fate}           grants whose answer failed
//	holdfast_backend_op_seconds{backend,op}       calls of the backend
//	holdfast_backend_errors_total{backend,op,kind}
//	holdfast_build_info{backend,version,go}
//
// The metrics of the oldest waiter and of the sessions exist if [Options] has functions for them.
// Hand-overs, quotas and refusals are reported by the server; a program that uses only the library
// cannot see them.
package observe
