module github.com/holdfast-io/holdfast/examples/filelock

go 1.26.0

require (
	github.com/holdfast-io/holdfast v0.0.0
	golang.org/x/sys v0.49.0
)

replace github.com/holdfast-io/holdfast => ../..
