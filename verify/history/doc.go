// Package history records what was observed of a lock service: every call with its return, what
// the holders believed, what reached the resource, and the faults. The workers of holdfast
// verify write it, and the referee, package verify, reads it; the two share nothing else.
//
// # The format
//
// A history is a file of JSON lines. The first is the header, the last the footer; a history
// without a footer was cut short. Lines need not be in the order of their times. For a referee
// that judges while the history is recorded, the lines of one worker have to be, and a worker
// that has nothing to report sends tick.
//
//	{"e":"header","t":…,"version":1,"seed":7,"backend":"redis","ttl":2000000000,…}
//	{"e":"call","t":…,"w":"2.1","op":4,"verb":"acquire","lock":"a","acq":"2.1-4"}
//	{"e":"return","t":…,"w":"2.1","op":4,"outcome":"ok","token":17,"deadline":…}
//	{"e":"held","t":…,"w":"2.1","acq":"2.1-4","deadline":…}
//	{"e":"write","t":…,"w":"2.1","register":"bare","lock":"a","token":17,"base":"x","value":"y","outcome":"ok"}
//	{"e":"freeze","t":…,"w":"2.1"}
//	{"e":"silence","t":…,"w":"2.1","took":900000000}
//	{"e":"footer","t":…}
//
// # Time
//
// All times are nanoseconds of one clock that never goes back and that all processes of the
// machine share. On Linux it continues while the machine is suspended. A call without a return
// has no known outcome: it may take effect at any later time.
package history
