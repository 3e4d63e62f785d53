package cli

import (
	"cmp"
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if a.json {
				return a.printJSON(map[string]string{"version": version(), "revision": revision(), "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH})
			}
			_, err := fmt.Fprintln(a.stdout, "holdfast version "+versionText())
			return err
		},
	}
}

// versionText returns the version, the commit and the platform in a line.
func versionText() string {
	return fmt.Sprintf("%s (%s, %s %s/%s)", version(), revision(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// version returns the version of the command.
func version() string {
	info, _ := debug.ReadBuildInfo()
	return versionOf(info)
}

// versionOf returns the version of the release that the go command built, from a module proxy or at a tag of the
// repository. A build of any other commit, or with changes, is a development version. info may be nil.
func versionOf(info *debug.BuildInfo) string {
	const next = "0.1.0-dev"
	if info == nil {
		return next
	}
	release := regexp.MustCompile(`^v(\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?)$`).FindStringSubmatch(info.Main.Version)
	if release == nil || regexp.MustCompile(`\d{14}-[0-9a-f]{12}$`).MatchString(release[1]) { // the latter is a pseudo-version
		return next
	}
	return release[1]
}

// commit is the commit from which the command was built, for builds without the repository, such as that of
// deploy/docker/Dockerfile. Only the linker sets it.
//
//nolint:gochecknoglobals // the linker sets it
var commit string

// revision returns the commit from which the command was built, if the go command or the linker was told.
func revision() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return cmp.Or(commit, "unknown")
}
