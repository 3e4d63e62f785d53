package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend/backendtest"
)

func contractTable() string {
	var b strings.Builder
	b.WriteString("| ID | holds, on every backend |\n| --- | --- |\n")
	for _, p := range backendtest.Contract() {
		fmt.Fprintf(&b, "| %s | %s |\n", p.ID, p.Text)
	}
	return b.String()
}

// The documentation of package backend has the contract of the suite.
func TestContractComment(t *testing.T) {
	t.Parallel()
	const path, begin, end = "../../../backend/doc.go", "of docs/guarantees.md.\n//\n", "//\n// # Who does what"
	rewritten(t, path, "the contract", func(text string) (string, error) {
		i, j := strings.Index(text, begin), strings.Index(text, end)
		if i < 0 || j < i {
			return "", fmt.Errorf("%q and %q are missing", begin, end)
		}
		return text[:i+len(begin)] + contractComment() + text[j:], nil
	})
}

// contractComment is the contract as preformatted text of a Go comment.
func contractComment() string {
	const width = 79
	var b strings.Builder
	for _, p := range backendtest.Contract() {
		line := fmt.Sprintf("//\t%-4s", p.ID)
		for word := range strings.FieldsSeq(p.Text) {
			if len(line)+len(word) > width {
				b.WriteString(line + "\n")
				line = "//\t    "
			}
			line += " " + word
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// Each line of the contract has cases, and each case a line.
func TestContractHasCases(t *testing.T) {
	t.Parallel()
	var lines, cases []string
	for _, p := range backendtest.Contract() {
		lines = append(lines, p.ID)
	}
	for _, c := range backendtest.Cases() {
		if !slices.Contains(cases, c.ID) {
			cases = append(cases, c.ID)
		}
	}
	slices.Sort(lines)
	slices.Sort(cases)
	if !slices.Equal(lines, cases) {
		t.Errorf("the contract has the lines %q, the suite has cases of %q", lines, cases)
	}
}
