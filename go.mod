module github.com/holdfast-io/holdfast

go 1.26
