// Command holdfast takes locks that many processes and machines share.
package main

import (
	"context"
	"os"

	"github.com/holdfast-io/holdfast/cmd/holdfast/internal/cli"
)

func main() {
	os.Exit(cli.Run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
