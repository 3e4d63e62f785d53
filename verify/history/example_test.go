package history_test

import (
	"fmt"
	"strings"

	"github.com/holdfast-io/holdfast/verify/history"
)

// Read pairs each call with its return.
func ExampleRead() {
	h, err := history.Read(strings.NewReader(`{"e":"header","t":1,"version":1,"session_ttl":2000}
{"e":"call","t":10,"w":"1.1","op":1,"verb":"acquire","lock":"a","acq":"1.1-1"}
{"e":"return","t":20,"w":"1.1","op":1,"outcome":"ok","token":7,"deadline":2010}
{"e":"call","t":30,"w":"1.1","op":2,"verb":"release","lock":"a","acq":"1.1-1"}
{"e":"footer","t":40}
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, o := range h.Ops {
		fmt.Println(o.Verb, o.Lock, o.Outcome, o.Granted())
	}
	// Output:
	// acquire a ok true
	// release a unknown false
}
