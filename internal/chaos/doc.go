// Package chaos is a relay of tests and of holdfast verify that stands between a client and a server and injects
// faults: it delays, holds, drops, cuts, resets and refuses.
//
//	proxy := chaos.Start(t, server.Addr()) // a free port of the loopback
//	client := dial(proxy.Addr())
//	proxy.Hold(chaos.Replies)              // requests arrive, answers are kept
//	...
//	proxy.Heal()                           // the answers arrive, late
//
// # Two kinds of silence
//
// A network that loses packets for a time and recovers looks like one of two things to the
// programs that use it, and a lock must survive both:
//
//   - [Proxy.Hold] keeps every byte. All of them arrive after [Proxy.Release] or [Proxy.Heal],
//     however late. A request may then be executed for a client that gave up long ago.
//   - [Proxy.Cut] and [Proxy.BlackHole] lose every byte. A stream with a hole in it cannot
//     continue, so Heal resets the connections that lost something. The others stay open.
//
// In all three, the end of a connection is as silent as its bytes: one side may close it, and
// the other does not notice.
//
// # When a fault takes effect
//
// A fault applies to everything that is sent after its method returned, on open connections and
// on new ones. What the relay had read before may still pass, except that a delay or a hold
// keeps it where the next fault finds it.
//
// Bytes are handled in the pieces in which the kernel delivered them, at most 32 KiB each. A
// message may come in several pieces, and a piece may have several messages.
//
// # Waiting for events
//
// A test must not sleep until a fault has taken effect. [Proxy.Wait] waits for a condition on
// the counters, such as "the request has arrived here and is held".
package chaos
