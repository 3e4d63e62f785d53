package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// A setting of serve is a flag, a variable, or a key in the file of --config, in this order of
// precedence. The variable of --data-dir is HOLDFAST_SERVE_DATA_DIR, and its key is data-dir.

// settingsPrefix begins the variables of serve. HOLDFAST_BACKEND and HOLDFAST_TOKEN_FILE are the
// clients' and have another meaning.
const settingsPrefix = "HOLDFAST_SERVE_"

const (
	configFlag = "config"
	printFlag  = "print-config"
)

// variable returns the name of the variable of a flag.
func variable(flag string) string {
	return settingsPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// settable reports whether a variable or a key can set the flag.
func settable(flag string) bool { return flag != "help" && flag != printFlag }

// readSettings sets the flags that the command line does not have. It returns where the value of
// each flag that has one comes from.
func readSettings(flags *pflag.FlagSet) (map[string]string, error) {
	from := make(map[string]string)
	flags.Visit(func(f *pflag.Flag) { from[f.Name] = "--" + f.Name })
	if err := readVariables(flags, os.Environ(), from); err != nil {
		return nil, err
	}
	path := flags.Lookup(configFlag).Value.String()
	if path == "" {
		return from, nil
	}
	data, err := os.ReadFile(path) //nolint:gosec // the operator named it
	if err != nil {
		return nil, fmt.Errorf("%s: %w", configFlag, err)
	}
	if err := readFile(flags, path, data, from); err != nil {
		return nil, err
	}
	return from, nil
}

// readVariables sets flags from variables. An empty variable counts as none. An unknown one is an
// error: with a typing error in its name, a policy or a limit would not be in force.
func readVariables(flags *pflag.FlagSet, environ []string, from map[string]string) error {
	given := make(map[string]string)
	for _, v := range environ {
		if name, value, _ := strings.Cut(v, "="); strings.HasPrefix(name, settingsPrefix) && value != "" {
			given[name] = value
		}
	}
	var err error
	flags.VisitAll(func(f *pflag.Flag) {
		name := variable(f.Name)
		value, ok := given[name]
		if !ok || !settable(f.Name) {
			return
		}
		delete(given, name)
		if from[f.Name] != "" {
			return
		}
		if bad := flags.Set(f.Name, value); bad != nil {
			err = errors.Join(err, usageError(name, "%v", cause(bad)))
		}
		from[f.Name] = name
	})
	for _, name := range slices.Sorted(maps.Keys(given)) {
		err = errors.Join(err, usageError(name, "serve has no such flag"))
	}
	return err
}

// cause returns the part of an error of pflag that does not name the flag.
func cause(err error) error {
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return bad.Unwrap()
	}
	return err
}

// entry is a key of the file with its value: one, or a list.
type entry struct {
	key    string
	line   int
	values []string
	list   bool
}

// readFile sets flags from the file of --config.
func readFile(flags *pflag.FlagSet, path string, data []byte, from map[string]string) error {
	entries, err := parseSettings(data)
	if err != nil {
		return usageError(configFlag, "%s: %v", path, err)
	}
	for _, e := range entries {
		at := fmt.Sprintf("%s:%d: %s", path, e.line, e.key)
		f := flags.Lookup(e.key)
		if f == nil || !settable(e.key) || e.key == configFlag {
			return usageError(at, "serve has no such setting")
		}
		if from[e.key] != "" {
			continue
		}
		slice, many := f.Value.(pflag.SliceValue)
		switch {
		case many:
			err = slice.Replace(e.values)
			f.Changed = true
		case e.list:
			err = errors.New("must be one value") //nolint:err113 // for people
		default:
			err = cause(flags.Set(e.key, e.values[0]))
		}
		if err != nil {
			return usageError(at, "%v", err)
		}
		from[e.key] = fmt.Sprintf("%s:%d", path, e.line)
	}
	return nil
}

// parseSettings parses the file of --config: a YAML document that is a mapping from keys to values
// or to lists of values.
func parseSettings(data []byte) ([]entry, error) {
	var doc, next yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(data))
	switch err := d.Decode(&doc); {
	case errors.Is(err, io.EOF): // an empty file
		return nil, nil
	case err != nil:
		return nil, err
	}
	if err := d.Decode(&next); !errors.Is(err, io.EOF) {
		return nil, errors.New("must be one YAML document") //nolint:err113 // for people
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: must be keys with values", root.Line) //nolint:err113 // for people
	}
	seen := make(map[string]bool)
	var entries []entry
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		e := entry{key: key.Value, line: key.Line, list: value.Kind == yaml.SequenceNode}
		nodes := []*yaml.Node{value}
		if e.list {
			nodes = value.Content
		}
		for _, n := range nodes {
			if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
				return nil, fmt.Errorf("line %d: %s: must be a value or a list of values", n.Line, e.key) //nolint:err113 // for people
			}
			e.values = append(e.values, n.Value)
		}
		if seen[e.key] {
			return nil, fmt.Errorf("line %d: %s: is there twice", e.line, e.key) //nolint:err113 // for people
		}
		seen[e.key] = true
		entries = append(entries, e)
	}
	return entries, nil
}

// printSettings prints all settings in the form of the file of --config, each with where it comes
// from. Passwords in URLs are not shown.
func (a *app) printSettings(cmd *cobra.Command, from map[string]string) error {
	all := &yaml.Node{Kind: yaml.MappingNode}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !settable(f.Name) || f.Name == configFlag {
			return
		}
		all.Content = append(all.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: f.Name}, settingNode(f, from[f.Name]))
	})
	out, err := yaml.Marshal(all)
	if err != nil {
		return fmt.Errorf("encode the settings: %w", err)
	}
	_, err = a.stdout.Write(out)
	return err
}

func settingNode(f *pflag.Flag, from string) *yaml.Node {
	if from == "" {
		from = "default"
	}
	scalar := func(value, tag string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: value, Tag: tag} }
	var n *yaml.Node
	slice, many := f.Value.(pflag.SliceValue)
	switch value := f.Value.String(); {
	case many:
		n = &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for _, v := range slice.GetSlice() {
			n.Content = append(n.Content, scalar(v, "!!str"))
		}
	case f.Value.Type() == "bool":
		n = scalar(value, "!!bool")
	case f.Value.Type() == "uint32":
		n = scalar(value, "!!int")
	case f.Name == "backend":
		n = scalar(withoutSecrets(value), "!!str")
	default:
		n = scalar(value, "!!str")
	}
	n.LineComment = from
	return n
}

// withoutSecrets replaces the password in the URL of a backend, and parameters that may be secret.
func withoutSecrets(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "xxxxx"
	}
	q := u.Query()
	for name := range q {
		if isSecret(name) {
			q.Set(name, "xxxxx")
			u.RawQuery = q.Encode()
		}
	}
	return u.Redacted()
}
