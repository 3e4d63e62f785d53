// Package backendtest is the conformance suite of package backend. It has at least one case for
// every line of the contract, C1 to C14, to be run against a real store.
//
// A test of a backend is one call of [Run] with a [Harness] that opens backend
// values on one store:
//
//	func TestConformance(t *testing.T) {
//		backendtest.Run(t, backendtest.Harness{Open: func(t backendtest.T) backend.Backend { … }})
//	}
//
// A program that is not a test runs the cases one by one: see [Case.Run].
//
// The cases use lock names, lease IDs and session IDs that are random and unique,
// so that many cases, and many processes, can run on one store at the same time.
// They wait for what happens, not for a duration. Lower bounds of time are exact; upper bounds
// are widened by Harness.Slack.
//
// A capability is tested both ways: a claimed capability has to work, and one that is not
// claimed has to be refused with backend.ErrUnsupported.
package backendtest
