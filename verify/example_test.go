package verify_test

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-io/holdfast/verify"
	"github.com/holdfast-io/holdfast/verify/history"
)

// Two workers were told that they have the same lock at the same time.
func ExampleJudge() {
	at := func(s int64) int64 { return s * int64(time.Second) }
	h, err := history.New([]history.Event{
		{Kind: history.KindHeader, Header: &history.Header{Version: history.Version, SessionTTL: at(60)}},
		{Kind: history.KindCall, At: at(1), Worker: "1.1", Op: 1, Verb: history.VerbAcquire, Lock: "a", Acq: "one"},
		{Kind: history.KindReturn, At: at(2), Worker: "1.1", Op: 1, Outcome: history.OK, Token: 7, Deadline: at(60)},
		{Kind: history.KindCall, At: at(3), Worker: "2.1", Op: 1, Verb: history.VerbAcquire, Lock: "a", Acq: "two"},
		{Kind: history.KindReturn, At: at(4), Worker: "2.1", Op: 1, Outcome: history.OK, Token: 8, Deadline: at(60)},
		{Kind: history.KindFooter, At: at(5)},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	report := verify.Judge(context.Background(), h, verify.Options{MinGrants: -1})
	fmt.Println(report.Verdict)
	for _, c := range report.Checks {
		if c.Verdict == verify.Violation {
			fmt.Println(c.ID)
		}
	}
	// Output:
	// violation
	// overlap
	// model
}
