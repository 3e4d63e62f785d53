// Package observe turns what happens to locks into Prometheus metrics.
//
//	m, err := observe.NewPrometheus(prometheus.DefaultRegisterer, observe.Options{Backend: "redis"})
//	locks, err := holdfast.New(m.Backend(b), holdfast.Config{Events: m.Events()})
//
// Labels are the backend, the mode ("exclusive", "shared"), results and causes;
// never the name of a lock, of which there may be millions. Every series is there
// with its zero from the start, so that an alert on a rate works with the first
// event.
//
// The one to alert on is holdfast_renew_margin_seconds: how much of a lease was
// left when its renewal was acknowledged. It shrinks before locks are lost.
//
//	holdfast_acquire_total{backend,mode,result}   attempts, by how they ended
//	holdfast_wait_seconds{backend,mode}           from the call to the grant
//	holdfast_hold_seconds{backend,mode}           from the grant to the end
//	holdfast_handoff_seconds{backend}             from a release to the next grant
//	holdfast_queue_depth{backend}                 acquisitions under way
//	holdfast_oldest_waiter_seconds{backend}       age of the oldest of them
//	holdfast_held{backend,mode}                   leases that are out
//	holdfast_renew_total{backend,result}          renewals
//	holdfast_renew_margin_seconds{backend}        left when acknowledged
//	holdfast_lost_total{backend,cause}            losses told to holders
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
// The oldest waiter and the sessions are there when [Options] says how to find them
// out. Hand-offs, quotas and refusals are told by the server; a program that uses
// the library alone cannot see them.
package observe
