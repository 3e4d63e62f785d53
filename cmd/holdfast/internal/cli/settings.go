package cli

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// settingsPrefix begins the variables of serve: that of --data-dir is HOLDFAST_SERVE_DATA_DIR.
// HOLDFAST_BACKEND and HOLDFAST_TOKEN_FILE are the clients' and have another meaning.
const settingsPrefix = "HOLDFAST_SERVE_"

// readVariables sets the flags that the command line does not have from variables. An empty variable
// counts as none. An unknown one is an error: with a typing error in its name, a policy or a limit would
// not be in force.
func readVariables(flags *pflag.FlagSet) error {
	given := make(map[string]string)
	for _, v := range os.Environ() {
		if name, value, _ := strings.Cut(v, "="); strings.HasPrefix(name, settingsPrefix) && value != "" {
			given[name] = value
		}
	}
	var err error
	flags.VisitAll(func(f *pflag.Flag) {
		name := settingsPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, ok := given[name]
		if !ok || f.Name == "help" {
			return
		}
		delete(given, name)
		if f.Changed {
			return
		}
		if bad := flags.Set(f.Name, value); bad != nil {
			err = errors.Join(err, usageError(name, "%v", bad))
		}
	})
	for _, name := range slices.Sorted(maps.Keys(given)) {
		err = errors.Join(err, usageError(name, "serve has no such flag"))
	}
	return err
}
