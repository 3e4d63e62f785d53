package cli

import (
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast/server/access"
)

func (a *app) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check a policy of \"holdfast serve\", and ask it",
		Long: `Check the file that "holdfast serve --policy" reads, and ask what it allows. Its format is
described in docs/operations.md.`,
	}
	check := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a policy",
		Long:  "Check a policy. Exit status: 0; 64 if it has an error, which names the place.",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			p, err := readPolicy(args[0])
			if err == nil {
				fmt.Fprintf(a.stdout, "%d principals\n", len(p.Principals()))
			}
			return err
		},
	}
	test := &cobra.Command{
		Use:   "test FILE PRINCIPAL VERB [LOCK]",
		Short: "Ask whether a principal may do something",
		Long: `Ask whether a principal may acquire, read or break a lock. Without a lock, ask whether it
may do so to any. Exit status: 0 if it may; 1 if not; 64 if the policy has an error.`,
		Example: `  holdfast policy test policy.yaml billing acquire billing/invoice`,
		Args:    cobra.RangeArgs(3, 4),
		RunE: func(_ *cobra.Command, args []string) error {
			p, err := readPolicy(args[0])
			if err != nil {
				return err
			}
			verb, lock := access.Verb(args[2]), ""
			if !slices.Contains(access.Verbs(), verb) {
				return usageError("VERB", "%q: must be one of %v", args[2], access.Verbs())
			}
			if len(args) == 4 {
				lock = args[3]
			}
			d := p.Decide(args[1], verb, lock)
			fmt.Fprintln(a.stdout, d.Why)
			if !d.Allowed {
				return exitError(exitError1)
			}
			return nil
		},
	}
	cmd.AddCommand(check, test)
	return cmd
}

func readPolicy(path string) (*access.Policy, error) {
	text, err := os.ReadFile(path) //nolint:gosec // the user names it
	if err != nil {
		return nil, configError("FILE", err)
	}
	p, err := access.Parse(text)
	if err != nil {
		return nil, &usage{err: fmt.Errorf("%s: %w", path, err)}
	}
	return p, nil
}
