module github.com/holdfast-io/holdfast/backend/zklock

go 1.26

require github.com/holdfast-io/holdfast v0.0.0

require github.com/go-zookeeper/zk v1.0.4

replace github.com/holdfast-io/holdfast => ../..
