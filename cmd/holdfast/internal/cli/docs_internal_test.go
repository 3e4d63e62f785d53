package cli

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every holdfast command on a page exists, with its flags, and in a block of code with its arguments too.
func TestDocsCommands(t *testing.T) {
	t.Parallel()
	const root = "../../../.."
	commands := 0
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case filepath.Ext(name) != ".md":
			return nil
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return err
		}
		faults, n := badCommands(string(text))
		commands += n
		for _, fault := range faults {
			t.Errorf("%s: %s", name, fault)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if commands < 90 {
		t.Errorf("only %d commands were found", commands)
	}
}

// badCommands returns what is wrong with the holdfast commands of a page, and how many it has.
func badCommands(page string) ([]string, int) {
	var faults []string
	n := 0
	check := func(line string, whole bool) {
		n++
		if err := parses(strings.Fields(line)[1:], whole); err != nil {
			faults = append(faults, fmt.Sprintf("%s: %v", line, err))
		}
	}
	blocks := regexp.MustCompile("(?ms)^ *```[a-z]*\n(.*?)^ *```")
	for _, m := range blocks.FindAllStringSubmatch(page, -1) {
		for line := range strings.Lines(strings.ReplaceAll(m[1], "\\\n", " ")) {
			line = regexp.MustCompile(`^ *(\$ )?(sudo )?`).ReplaceAllString(line, "")
			line = regexp.MustCompile(`"[^"]*"`).ReplaceAllString(line, "quoted")
			line = regexp.MustCompile(`\s([#|>&;]|2>).*`).ReplaceAllString(line, "")
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "holdfast ") {
				check(line, true)
			}
		}
	}
	for _, m := range regexp.MustCompile("`(holdfast [^`]+)`").FindAllStringSubmatch(blocks.ReplaceAllString(page, ""), -1) {
		check(m[1], false)
	}
	return faults, n
}

// parses returns an error unless these are arguments of holdfast. If not whole, arguments may be missing.
func parses(args []string, whole bool) error {
	root := (&app{stdout: io.Discard, stderr: io.Discard}).root()
	root.InitDefaultCompletionCmd()
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil && (whole || !strings.Contains(err.Error(), "needs an argument")) {
		return err
	}
	given := cmd.Flags().Args()
	switch {
	case !cmd.Runnable() && len(given) > 0:
		return fmt.Errorf("%s has no command %s", cmd.CommandPath(), given[0])
	case whole && !cmd.Runnable():
		return fmt.Errorf("%s is not a whole command", cmd.CommandPath())
	case whole:
		return cmd.ValidateArgs(given)
	}
	return nil
}
