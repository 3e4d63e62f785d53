package access_test

import (
	"fmt"

	"github.com/holdfast-io/holdfast/server/access"
)

// A policy can be asked before it is used: "holdfast policy test" does so.
func ExamplePolicy_Decide() {
	policy, err := access.Parse([]byte(`
principals:
  billing: {certificates: [billing.example.com]}
grants:
- {to: [billing], locks: [billing], verbs: [acquire, read]}
`))
	if err != nil {
		panic(err)
	}
	fmt.Println(policy.Decide("billing", access.Acquire, "billing/invoice").Why)
	fmt.Println(policy.Decide("billing", access.Break, "billing/invoice").Why)
	// Output:
	// grant 1 allows billing to acquire
	// no grant allows billing to break billing/invoice
}

// The policy of a file is the policy of the server, and is read again when the file changes.
func ExampleOpen() { //nolint:testableexamples // it needs a file
	file, err := access.Open("/etc/holdfast/policy.yaml", access.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer file.Close()
	fmt.Println(file.Policy().Decide("billing", access.Acquire, "billing/invoice").Why)
}
