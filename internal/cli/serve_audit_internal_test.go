//go:build linux

package cli

import (
	"bytes"
	"testing"
)

// A line that the file does not take is not lost.
func TestAuditOnAFullDisk(t *testing.T) {
	t.Parallel()
	var spare bytes.Buffer
	f, err := openAudit("/dev/full", &spare)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	const line = "{}\n"
	if n, err := f.Write([]byte(line)); n != len(line) || err != nil || spare.String() != line {
		t.Errorf("%d, %v, and %q was written", n, err, spare.String())
	}
}
